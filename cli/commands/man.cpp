// SPDX-License-Identifier: Apache-2.0
// man: the manual page, in roff, written from the commands themselves. The installation has it as tilewright(1).
#include <fmt/format.h>
#include <tilewright/version.h>

#include "cli/command.h"

namespace tilewright::cli {
namespace {

// Text as roff shows it: hyphens stay hyphens, and no line is a request.
std::string roff(std::string_view text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    begins = c == '\n';
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string item(const std::string& term, const std::string& value, const std::string& help) {
  return fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", roff(term), value.empty() ? "" : " \\fI" + roff(value) + "\\fR",
                     roff(help));
}

std::string options_of(const CLI::App& app) {
  std::string out;
  for (const CLI::Option* o : app.get_options()) {
    std::string term;
    for (const std::string& name : o->get_snames()) term += (term.empty() ? "-" : ", -") + name;
    for (const std::string& name : o->get_lnames()) term += (term.empty() ? "--" : ", --") + name;
    if (o->get_positional()) term = o->get_name();
    out += item(term, o->get_items_expected_max() > 0 ? o->get_type_name() : "", o->get_description());
  }
  return out;
}

void add_sections(const CLI::App& app, const std::string& path, std::string& out) {
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string name = path + child->get_name();
    out += fmt::format(".SS {}\n{}\n{}", roff(name), roff(child->get_description()), options_of(*child));
    add_sections(*child, name + " ", out);
  }
}

std::string page(const CLI::App& app) {
  std::string out = fmt::format(
      ".TH TILEWRIGHT 1 \"\" \"tilewright {}\"\n.SH NAME\ntilewright \\- {}\n.SH SYNOPSIS\n\\fBtilewright\\fR "
      "\\fICOMMAND\\fR [\\fIOPTION\\fR ...] [\\fIPROBLEM\\fR]\n.SH OPTIONS\n{}.SH COMMANDS\n",
      TILEWRIGHT_VERSION_STRING, roff(app.get_description()), options_of(app));
  add_sections(app, "", out);
  return out + ".SH PROBLEMS AND EXIT STATUS\n.nf\n" + roff(app.get_footer()) + "\n.fi\n";
}

}  // namespace

void add_man(Context& context) {
  CLI::App* command = add_command(context, *context.app, "man", "Print the manual page: tilewright man | man -l -");
  command->callback([&context] {
    context.action = [&context] {
      const std::string text = page(*context.app);
      if (context.json)
        print_json(Json{{"roff", text}});
      else
        print(text);
      return kOk;
    };
  });
}

}  // namespace tilewright::cli
