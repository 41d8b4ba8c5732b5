// SPDX-License-Identifier: Apache-2.0
// tilewright: the library at the command line.
#include <fmt/format.h>
#include <tilewright/text.h>

#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/errors.h"

namespace {

using namespace tilewright;
using namespace tilewright::cli;

// The end of --help, made from the operations' own tables of fields.
std::string footer() {
  std::string text = "\nA PROBLEM is text, in one argument or several ('tilewright operations' explains the fields):\n";
  for (const Operation* op : operations()) {
    std::string line = "  " + std::string(op->name());
    for (const FieldInfo& f : op->fields()) {
      const std::string word =
          fmt::format(f.required ? fmt::runtime(" {}={}") : fmt::runtime(" [{}={}]"), f.name, f.value);
      if (line.size() + word.size() > 100) text += line + "\n", line = "      ";
      line += word;
    }
    text += line + "\n";
  }
  return text +
         "For example: gemm x=q8_1 w=q4_0 y=f32 m=2 n=4096 k=14336\n"
         "\nExit codes: 0 done; 1 bad argument, problem or file; 2 a result beyond its error bound; 3 damage in a "
         "cache;"
         "\n4 the environment: no GPU, no libnvrtc, a driver or compiler that failed, a cache that keeps "
         "nothing; 130 Ctrl-C.\n"
         "With --json an error is an object too: {\"error\": {\"code\", \"field\", \"value\", \"allowed\", "
         "\"message\"}, "
         "\"exit\"}.\n"
         "\n'tilewright doctor' says what works here and how to fix what does not.\n";
}

// CLI11 would only say that a subcommand is required.
void check_command(CLI::App& app, const std::string& name) {
  std::vector<std::string_view> names;
  for (const CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    if (command->get_name() == name) return;
    names.push_back(command->get_name());
  }
  throw Error(ErrorCode::invalid_argument, "command", name, one_of(names, name));
}

// `tilewright help` and `tilewright help COMMAND`, as many tools have them.
std::vector<char*> without_help(int argc, char** argv) {
  static char flag[] = "--help";
  std::vector<char*> words(argv, argv + argc);
  if (argc > 1 && std::string_view(argv[1]) == "help") {
    words.erase(words.begin() + 1);
    words.push_back(flag);
  }
  return words;
}

int run(Context& context, int argc, char** argv) {
  CLI::App app("JIT-compiled, autotuned quantized GEMM kernels for NVIDIA GPUs and for CPUs", "tilewright");
  context.app = &app;
  app.require_subcommand(1);
  app.set_version_flag("--version", TILEWRIGHT_VERSION_STRING);
  add_catalogue(context);
  add_plan(context);
  add_export(context);
  add_prewarm(context);
  add_tune(context);
  add_plot(context);
  add_calibrate(context);
  add_run(context);
  add_bench(context);
  add_model_files(context);
  add_quantize(context);
  add_cache(context);
  add_doctor(context);
  add_completion(context);
  add_man(context);
  app.footer(footer());  // last: commands that exist would repeat it
  if (argc > 1 && argv[1][0] != '-') check_command(app, argv[1]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help, --version
  } catch (const CLI::ParseError& e) {
    return report_usage(e.what(), wants_json(argc, argv));
  }
  return context.action();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "compile-worker") return compile_worker_main(0, 1);
  Context context;
  try {
    std::vector<char*> words = without_help(argc, argv);
    return finish_output(run(context, argc, words.data()));
  } catch (const std::exception& e) {
    return finish_output(report(e, wants_json(argc, argv)));
  }
}
