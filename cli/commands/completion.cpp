// SPDX-License-Identifier: Apache-2.0
// completion bash|zsh|fish: a script for the shell, written from the commands and the operations' fields themselves.
#include <fmt/format.h>
#include <tilewright/operation.h>

#include <algorithm>
#include <map>

#include "cli/command.h"

namespace tilewright::cli {
namespace {

struct Option {
  std::string name, help;  // "--arch"
  std::string words;       // what its value may be; empty: a file, if it takes one
  bool takes_value = false;
};

struct Command {
  std::string path, name, help;  // "cache ls", "ls"; both empty for the tool itself
  std::string words;             // of its positional argument
  std::vector<Option> options;
  std::vector<std::string> children;  // names
};

std::string target_words() {
  std::string words = "all native";
  for (const Arch& a : archs()) words += std::string(" ") + a.name;
  return words;
}

std::string operation_words() {
  std::string words;
  for (const Operation* operation : operations()) words += (words.empty() ? "" : " ") + std::string(operation->name());
  return words;
}

std::string field_words(const Operation& operation) {
  std::string words;
  for (const FieldInfo& f : operation.fields()) words += (words.empty() ? "" : " ") + f.name + "=";
  return words;
}

// By field: what may stand behind its '=', of all operations; fields of numbers are left out.
std::map<std::string, std::string> field_values() {
  std::string formats;
  for (const Format& f : Format::all()) formats += (formats.empty() ? "" : " ") + std::string(f.name());
  std::map<std::string, std::string> values;
  for (const Operation* operation : operations())
    for (const FieldInfo& f : operation->fields()) {
      const bool said = !f.value.empty() && f.value[0] >= 'a' && f.value[0] <= 'z';  // else it stands for something
      std::string words = f.value == "FORMAT" ? formats : said ? f.value : "";
      std::replace(words.begin(), words.end(), '|', ' ');
      if (!words.empty()) values[f.name] = words;
    }
  return values;
}

// Cases of a shell's `case`, which set `words` to the fields of an operation and to the values of a field.
std::string field_cases(const char* line) {
  std::string out;
  for (const Operation* operation : operations())
    out += fmt::format(fmt::runtime(line), operation->name(), field_words(*operation));
  return out;
}
std::string value_cases(const char* line) {
  std::string out;
  for (const auto& [field, words] : field_values()) out += fmt::format(fmt::runtime(line), field, words);
  return out;
}

void collect(const CLI::App& app, const std::string& path, std::vector<Command>& commands) {
  Command c{path, path.empty() ? "" : app.get_name(), app.get_description(), "", {}, {}};
  for (const CLI::Option* o : app.get_options()) {
    if (o->get_positional()) {
      if (o->get_name() == "problem") c.words = operation_words();
      if (o->get_name() == "shell") c.words = "bash zsh fish";
      continue;
    }
    const std::string name = "--" + (o->get_lnames().empty() ? std::string() : o->get_lnames().front());
    if (name == "--") continue;
    c.options.push_back(
        {name, o->get_description(), name == "--arch" ? target_words() : "", o->get_items_expected_max() > 0});
  }
  const auto children = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* child : children) c.children.push_back(child->get_name());
  commands.push_back(std::move(c));
  for (const CLI::App* child : children)
    collect(*child, path.empty() ? child->get_name() : path + " " + child->get_name(), commands);
}

std::string words_of(const Command& c) {
  std::string words = c.words;
  for (const std::string& child : c.children) words += " " + child;
  for (const Option& o : c.options) words += " " + o.name;
  return words;
}

std::string operations_of_case() {
  std::string words = operation_words();
  std::replace(words.begin(), words.end(), ' ', '|');
  return words;
}

// The words before the cursor name the command, and the operation of a problem; words that belong to no command are
// arguments.
std::string find_command(const std::vector<Command>& commands, const char* words, const char* from, const char* to) {
  std::string known;
  for (const Command& c : commands)
    if (!c.path.empty()) known += (known.empty() ? "\"" : "|\"") + c.path + "\"";
  return fmt::format(
      "  local command= operation= path i\n"
      "  for ((i = {}; i < {}; ++i)); do\n"
      "    path=\"${{command:+$command }}${{{}[i]}}\"\n"
      "    case \"$path\" in {}) command=$path ;; esac\n"
      "    case \"${{{}[i]}}\" in {}) operation=${{{}[i]}} ;; esac\n"
      "  done\n",
      from, to, words, known, words, operations_of_case(), words);
}

std::string bash(const std::vector<Command>& commands) {
  std::string out =
      "# tilewright: eval \"$(tilewright completion bash)\"\n_tilewright() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n" +
      find_command(commands, "COMP_WORDS", "1", "COMP_CWORD") +
      "  case \"$prev\" in\n    --arch) COMPREPLY=($(compgen -W \"" + target_words() +
      "\" -- \"$cur\")); return ;;\n  esac\n"
      // Bash ends words at '='.
      "  local field=\n"
      "  if [[ $cur == \"=\" ]]; then field=$prev cur=; elif [[ $prev == \"=\" ]]; then "
      "field=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
      "  case \"$field\" in\n" +
      value_cases("    {}) COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")); return ;;\n") +
      "  esac\n"
      "  case \"$operation\" in\n" +
      field_cases("    {}) words=\"{}\"; compopt -o nospace 2>/dev/null ;;\n") +
      "  esac\n"
      "  if [[ -n $operation && $cur != -* ]]; then COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")); return; fi\n"
      "  case \"$command\" in\n";
  for (const Command& c : commands) out += fmt::format("    \"{}\") words=\"{}\" ;;\n", c.path, words_of(c));
  // No word fits: -o default then completes files.
  return out +
         "  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\n"
         "complete -o default -F _tilewright tilewright\n";
}

// Text of a help line between single quotes; ':' separates a word from its description.
std::string quoted(std::string text, bool colon = false) {
  std::string out;
  for (char c : text) {
    if (c == '\'')
      out += "'\\''";
    else if (c == ':' && colon)
      out += "\\:";
    else
      out += c;
  }
  return out;
}

std::string zsh(const std::vector<Command>& commands) {
  std::string out =
      "#compdef tilewright\n# tilewright: eval \"$(tilewright completion zsh)\", after compinit\n_tilewright() {\n"
      "  local -a described\n" +
      find_command(commands, "words", "2", "CURRENT") + "  if [[ ${words[CURRENT-1]} == --arch ]]; then compadd -- " +
      target_words() +
      "; return; fi\n"
      "  if [[ $PREFIX == *=* ]]; then\n"
      "    local field=${PREFIX%%=*}\n"
      "    compset -P '*='\n"
      "    case $field in\n" +
      value_cases("      {}) compadd -- {} ;;\n") +
      "    esac\n"
      "    return\n"
      "  fi\n"
      "  if [[ -n $operation && $PREFIX != -* ]]; then\n"
      "    case $operation in\n" +
      field_cases("      {}) compadd -S '' -- {} ;;\n") +
      "    esac\n"
      "    return\n"
      "  fi\n"
      "  case \"$command\" in\n";
  for (const Command& c : commands) {
    out += fmt::format("    \"{}\") described=(", c.path);
    for (const Command& child : commands)
      if (!child.path.empty() && child.path == (c.path.empty() ? child.name : c.path + " " + child.name))
        out += fmt::format(" '{}:{}'", child.name, quoted(child.help, true));
    for (const Option& o : c.options) out += fmt::format(" '{}:{}'", o.name, quoted(o.help, true));
    out += ")";
    if (!c.words.empty()) out += "; compadd -- " + c.words;
    out += " ;;\n";
  }
  return out + "  esac\n  _describe tilewright described\n  _files\n}\ncompdef _tilewright tilewright\n";
}

std::string fish(const std::vector<Command>& commands) {
  std::string out = "# tilewright: tilewright completion fish | source\n";
  for (const Command& c : commands) {
    const auto space = c.path.find(' ');
    std::string when;
    if (c.path.empty())
      when = "__fish_use_subcommand";
    else if (space == c.path.npos)
      when = "__fish_seen_subcommand_from " + c.path;
    else
      when = fmt::format("__fish_seen_subcommand_from {}; and __fish_seen_subcommand_from {}", c.path.substr(0, space),
                         c.name);
    for (const Command& child : commands)
      if (!child.path.empty() && child.path == (c.path.empty() ? child.name : c.path + " " + child.name))
        out += fmt::format("complete -c tilewright -f -n '{}' -a {} -d '{}'\n", when, child.name, quoted(child.help));
    if (!c.words.empty()) out += fmt::format("complete -c tilewright -n '{}' -a '{}'\n", when, c.words);
    for (const Option& o : c.options)
      out += fmt::format("complete -c tilewright -n '{}' -l {}{} -d '{}'\n", when, o.name.substr(2),
                         !o.takes_value    ? ""
                         : o.words.empty() ? " -r"
                                           : " -x -a '" + o.words + "'",
                         quoted(o.help));
  }
  return out + field_cases("complete -c tilewright -n '__fish_seen_subcommand_from {}' -a '{}'\n");
}

int run_completion(const Context& context, const std::string& shell) {
  std::vector<Command> commands;
  collect(*context.app, "", commands);
  const std::string script = shell == "bash" ? bash(commands) : shell == "zsh" ? zsh(commands) : fish(commands);
  if (context.json)
    print_json(Json{{"shell", shell}, {"script", script}});
  else
    print(script);
  return kOk;
}

}  // namespace

void add_completion(Context& context) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command = add_command(context, *context.app, "completion",
                                  "Print a completion script: eval \"$(tilewright completion bash)\"");
  command->add_option("shell", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->callback(
      [&context, shell] { context.action = [&context, shell] { return run_completion(context, *shell); }; });
}

}  // namespace tilewright::cli
