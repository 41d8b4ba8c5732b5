// SPDX-License-Identifier: Apache-2.0
// Tests what a newcomer meets first: where libnvrtc is found, what errors look like, what a long command says, and
// advice.
#include <chrono>
#include <cstdio>

#include "cli/progress.h"
#include "cli/tool.h"

using namespace cli_tool;

namespace {

constexpr const char* kCast = "cast x=f32 y=f16 rows=1 cols=64 ";
constexpr const char* kPacked = "\"gemm x=q8_1 w=q4_0 y=f32 m=1 n=4096 k=4096 pack=tiles\" ";
constexpr const char* kStored = "\"gemm x=q8_1 w=q4_0 y=f32 m=16 n=4096 k=4096\" ";

// The compiler double in a directory of `root`, which is made.
void put_compiler(const fs::path& directory) {
  fs::create_directories(directory);
  for (const auto& file : fs::directory_iterator(tilewright::paths::nvrtc_old()))
    fs::copy(file.path(), directory / file.path().filename(), fs::copy_options::overwrite_existing);
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("cli: libnvrtc is found in an active virtual environment, and beside the program") {
  const fs::path venv = scratch().path / "venv";
  put_compiler(venv / "lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib");
  const std::string cache = cache_flag("doctor.db");
  const std::string clean = "unset TILEWRIGHT_NVRTC VIRTUAL_ENV CONDA_PREFIX CUDA_PATH CUDA_HOME; cd / && ";
  const std::string driver = "TILEWRIGHT_DRIVER=/nonexistent/libcuda.so ";
  const Json active = finding(
      shell(clean + "VIRTUAL_ENV='" + venv.string() + "' " + driver + tool_path() + "doctor --json" + cache).json(),
      "libnvrtc");
  CHECK(active["version"] == "12.0 build 42");
  CHECK(active["path"].get<std::string>().rfind(venv.string(), 0) == 0);

  // BUILD/bin/tilewright beside BUILD/nvrtc, and PREFIX/bin/tilewright with PREFIX/lib/tilewright.
  for (const char* place : {"nvrtc/nvidia/cu13/lib", "lib/tilewright"}) {
    const fs::path tree = scratch().path / "tree";
    fs::remove_all(tree);
    put_compiler(tree / place);
    fs::create_directories(tree / "bin");
    fs::copy(tilewright::paths::binary_dir() + "/bin/tilewright", tree / "bin/tilewright");
    const Json beside =
        finding(shell(clean + driver + "'" + (tree / "bin/tilewright").string() + "' doctor --json" + cache).json(),
                "libnvrtc");
    INFO(beside.dump());
    CHECK(beside["version"] == "12.0 build 42");
    CHECK(beside["path"].get<std::string>() == (tree / place / "libnvrtc.so.12").string());
    CHECK(beside["state"] == "note");  // too old for some targets, which it names
    CHECK(contains(beside["fix"], "sm_120a"));
  }
}

TEST_CASE("cli: without libnvrtc, prewarm is one error that names the variable") {
  const Ran r = tool("prewarm --arch sm_80,sm_90a --workload tests/readme/workload.txt" + cache_flag("bare.db"),
                     "TILEWRIGHT_NVRTC=/nonexistent/libnvrtc.so.13");
  INFO(r.out << r.err);
  CHECK(r.code == 4);
  CHECK(r.out.empty());
  CHECK(count(r.err, "tilewright: error: ") == 1);
  CHECK(contains(r.err, "TILEWRIGHT_NVRTC"));
  CHECK(contains(r.err, "/nonexistent/libnvrtc.so.13"));
  CHECK_FALSE(contains(r.err, "skipped"));
}

TEST_CASE("cli: with --json an error is an object with the fields of Error") {
  const auto error = [](const std::string& arguments, int code, const std::string& variables = "") {
    const Ran r = tool(arguments, variables);
    CHECK(r.code == code);
    CHECK(r.err.rfind("tilewright: error: ", 0) == 0);
    const Json all = r.json();
    CHECK(all["exit"] == code);
    return all["error"];
  };
  Json e = error("plan --json --arch sm_1 " + std::string(kCast), 1);
  CHECK(e["code"] == "invalid_argument");
  CHECK(e["field"] == "arch");
  CHECK(e["value"] == "sm_1");
  CHECK(contains(e["allowed"], "sm_90a"));
  CHECK(contains(e["message"], "arch must be one of "));
  e = error("plan --json --arch sm_90 " + std::string(kCast), 1);
  CHECK(contains(e["allowed"], "did you mean sm_90a?"));
  e = error("plan --json", 1);  // what the parser of arguments refuses
  CHECK(e["field"] == "arguments");
  CHECK(contains(e["message"], "problem"));
  CHECK(error("nothing --json", 1)["field"] == "command");
  e = error("prewarm --json --arch sm_80 " + std::string(kCast) + cache_flag("error.db"), 4,
            "TILEWRIGHT_NVRTC=/nonexistent/libnvrtc.so");
  CHECK(e["code"] == "library_missing");
  CHECK(e["value"] == "/nonexistent/libnvrtc.so");
}

TEST_CASE("cli: prewarm takes a problem, standard input, all targets and this machine's") {
  const std::string rest = " --top 1 --no-buckets --json" + cache_flag("reach.db");
  Json r = tool("prewarm " + std::string(kCast) + "--arch sm_80" + rest).json();
  CHECK(r["problems"] == 1);
  CHECK(r["compiled"] > 0);
  r = shell("printf 'cast x=f32 y=f16 rows=1 cols=64\\n# no more\\n' | TILEWRIGHT_DRIVER=/nonexistent/libcuda.so " +
            tool_path() + "prewarm --workload - --arch sm_80,sm_90a" + rest)
          .json();
  CHECK(r["problems"] == 1);
  CHECK(r["archs"] == Json({"sm_80", "sm_90a"}));
  // The problem after --arch is no target, and both sources add up.
  r = tool("prewarm --arch sm_80 " + std::string(kCast) + "--workload tests/readme/workload.txt" + rest).json();
  CHECK(r["problems"] == 2);
  CHECK(tool("prewarm --arch all --arch sm_80 " + std::string(kCast) + rest).json()["archs"].size() ==
        tool("archs --json").json()["archs"].size());
  // Without a GPU this machine's target is its CPU.
  const Ran native = tool("prewarm --arch native 'amax x=f32 rows=1 cols=64' " + cache_flag("native.db"));
  CHECK(native.code == 4);
  CHECK(native.err.find("amax has no kernels for CPUs yet") != std::string::npos);
  refused("prewarm --arch sm_80", 1, "PROBLEM");
  refused("prewarm --arch sm_80 --workload /dev/zero", 1, "/dev/zero");
}

TEST_CASE("cli: a model that is a FIFO is refused at once") {
  const std::string fifo = scratch() / "model.fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  refused("run " + std::string(kCast) + "--tensor x --model '" + fifo + "'", 1, "regular file");
}

TEST_CASE("cli: a long command says how far it is, in a pipe by lines") {
  using tilewright::cli::Progress;
  std::FILE* file = std::tmpfile();
  REQUIRE(file);
  Progress::Clock::time_point now{};
  const auto written = [&] {
    std::rewind(file);
    std::string text(4096, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file));
    return text;
  };
  {
    const Progress lines({.to = file, .bar = false, .between = std::chrono::seconds(5), .now = [&] { return now; }});
    lines("compile", 1, 188);
    CHECK(written().empty());  // what is short says nothing
    for (int i = 2; i <= 40; ++i, now += std::chrono::milliseconds(500)) lines("compile", i, 188);
  }
  CHECK(count(written(), "\n") == 3);  // 19.5 seconds
  CHECK(contains(written(), "tilewright: compile: 12 of 188, 80 s left\n"));
  CHECK_FALSE(contains(written(), "\r"));
  {
    const Progress bar({.to = file, .bar = true, .between = {}, .now = [&] { return now; }});
    bar("compile", 188, 188);
  }
  CHECK(contains(written(), "[##############################] 188/188 compile"));
  std::fclose(file);
}

TEST_CASE("cli: doctor says what will fail and how to fix it") {
  Ran r = tool("doctor --json" + cache_flag("healthy.db"));
  INFO(r.out << r.err);
  CHECK(r.code == 0);
  CHECK(r.json()["healthy"] == true);
  CHECK(finding(r.json(), "driver")["state"] == "note");  // most of the tool needs no GPU
  CHECK(finding(r.json(), "libnvrtc")["state"] != "problem");
  CHECK(finding(r.json(), "cache")["usable"] == true);
  CHECK(contains(tool("doctor" + cache_flag("healthy.db")).out, "libnvrtc"));

  r = tool("doctor --json" + cache_flag("healthy.db"), "TILEWRIGHT_NVRTC=/nonexistent TILEWRIGHT_JOBS=many");
  CHECK(r.code == 4);
  CHECK(r.json()["healthy"] == false);
  CHECK(contains(finding(r.json(), "libnvrtc")["what"], "/nonexistent"));
  CHECK(contains(finding(r.json(), "environment")["what"], "TILEWRIGHT_JOBS"));

  const fs::path open = scratch().path / "open";
  fs::create_directories(open);
  ::chmod(open.c_str(), 0777);
  r = tool("doctor --json --cache '" + (open / "cache.db").string() + "'");
  CHECK(r.code == 4);
  CHECK(contains(finding(r.json(), "cache")["what"], "writable by everybody"));
  CHECK(contains(finding(r.json(), "cache")["fix"], "TILEWRIGHT_CACHE"));
  r = tool("doctor --json" + cache_flag("healthy.db"), "TILEWRIGHT_SHIPPED=/nonexistent/shipped.db");
  CHECK(r.code == 4);
  CHECK(finding(r.json(), "shipped")["state"] == "problem");
}

TEST_CASE("cli: doctor makes nothing, and judges the place where a cache will be made") {
  const fs::path folder = scratch().path / "unmade";
  fs::create_directories(folder);
  ::chmod(folder.c_str(), 0700);
  for (const char* path : {"cache.db", "deep/er/cache.db"}) {
    const Ran r = tool("doctor --json --cache '" + (folder / path).string() + "'");
    INFO(r.out << r.err);
    CHECK(r.code == 0);
    CHECK(finding(r.json(), "cache")["usable"] == true);
    CHECK(fs::is_empty(folder));
  }
  CHECK(tool("doctor --cache '" + (fs::temp_directory_path() / "tilewright-unmade/cache.db").string() + "'").code == 0);
  ::chmod(folder.c_str(), 0777);
  const Ran r = tool("doctor --json --cache '" + (folder / "deep/cache.db").string() + "'");
  CHECK(r.code == 4);
  CHECK(contains(finding(r.json(), "cache")["what"], "writable by everybody"));
  CHECK(fs::is_empty(folder));
}

TEST_CASE("cli: to doctor a shipped cache without libnvrtc is no problem") {
  const std::string cache = cache_flag("to_ship.db"), shipped = scratch() / "doctor_shipped.db";
  REQUIRE(tool("prewarm --arch sm_80 --top 1 --no-buckets " + std::string(kCast) + cache).code == 0);
  REQUIRE(tool("cache export '" + shipped + "'" + cache).code == 0);
  // The tool alone, as in an image.
  const fs::path image = scratch().path / "image";
  fs::create_directories(image);
  fs::copy(tilewright::paths::binary_dir() + "/bin/tilewright", image / "tilewright",
           fs::copy_options::overwrite_existing);
  const auto doctor = [&](const std::string& variables) {
    return shell("env -i PATH=/nonexistent TILEWRIGHT_CACHE=:memory: " + variables + " '" +
                 (image / "tilewright").string() + "' doctor --json");
  };
  if (!finding(doctor("").json(), "libnvrtc")["path"].is_null()) return;  // this machine has one for everybody
  CHECK(doctor("").code == 4);
  Ran r = doctor("TILEWRIGHT_SHIPPED='" + shipped + "'");
  INFO(r.out << r.err);
  CHECK(r.code == 0);
  CHECK(finding(r.json(), "libnvrtc")["state"] == "note");
  // One that was named, and is not there, is a mistake.
  CHECK(doctor("TILEWRIGHT_SHIPPED='" + shipped + "' TILEWRIGHT_NVRTC=/nonexistent").code == 4);
  std::ofstream(shipped + "-wal") << "somebody's";
  CHECK(doctor("TILEWRIGHT_SHIPPED='" + shipped + "'").code == 4);
}

TEST_CASE("cli: TILEWRIGHT_LOG and -v say what is logged") {
  const std::string ignored = "TILEWRIGHT_JOBS=many";  // an Engine warns of it
  const std::string plan = "plan --arch sm_80 --cache :memory: " + std::string(kCast);
  CHECK(contains(tool(plan, ignored).err, "TILEWRIGHT_JOBS"));
  CHECK(tool(plan, ignored + " TILEWRIGHT_LOG=error").err.empty());
  CHECK(contains(tool(plan, ignored + " TILEWRIGHT_LOG=debug").err, "TILEWRIGHT_JOBS"));
  CHECK(contains(tool(plan + "-v", ignored + " TILEWRIGHT_LOG=error").err, "TILEWRIGHT_JOBS"));
  CHECK(contains(tool(plan, "TILEWRIGHT_LOG=loud").err, "loud"));
}

TEST_CASE("cli: plan recommends what an engine should ask for, and warns where only the reference is left") {
  const Json plan = tool(std::string("plan --json --arch sm_90a ") + kStored).json();
  REQUIRE(plan["advice"].is_object());
  CHECK(plan["advice"]["fields"][0]["field"] == "pack=tiles");
  for (const char* field : {"pack=tiles", "weights=constant", "workspace="})
    CHECK(contains(plan["advice"]["problem"], field));
  CHECK(plan["advice"]["predicted_microseconds"] < plan["candidates"][0]["predicted_microseconds"]);
  CHECK(plan["warning"].is_null());
  // Sixteen tokens by tiles take 6.8 us on an H200, and 18.3 as stored (bench/LOG.md).
  const double gain = plan["candidates"][0]["predicted_microseconds"].get<double>() /
                      plan["advice"]["fields"][0]["predicted_microseconds"].get<double>();
  CHECK(gain > 1.8);
  CHECK(gain < 4.0);
  const std::string all = plan["advice"]["problem"];
  CHECK(tool("plan --json --arch sm_90a '" + all + "'").json()["advice"].is_null());
  CHECK(contains(tool(std::string("plan --arch sm_90a ") + kStored).out, "times as fast"));
  CHECK(tool("plan --json --arch sm_90a " + std::string(kCast)).json()["advice"].is_null());

  const Ran reference = tool(std::string("plan --arch sm_80 ") + kPacked);
  CHECK(reference.code == 0);
  CHECK(contains(reference.err, "warning: only the reference kernel"));
  CHECK(contains(reference.err, "sm_80 (with pack=none others do)"));
  const Json stored = tool(std::string("plan --json --arch sm_80 ") + kPacked).json()["advice"];
  CHECK(stored["fields"][0]["field"] == "pack=none");
  CHECK(stored["problem"] == "gemm x=q8_1 w=q4_0 y=f32 m=1 n=4096 k=4096");
  const std::string rest = " --top 1 --no-buckets --json" + cache_flag("advice.db");
  const Ran warm = tool(std::string("prewarm --arch sm_80 ") + kPacked + rest);
  CHECK(warm.code == 0);
  CHECK(contains(warm.err, "warning: sm_80 takes no weights in the order of 1 problem"));
  CHECK(warm.json()["warnings"].size() == 1);
  CHECK(tool(std::string("prewarm --packed --arch sm_80 ") + kStored + rest).json()["warnings"].empty());
  const std::string alone = "prewarm --arch sm_80 'gemm x=q8_1 w=nf4 y=f32 m=2 n=64 k=256'" + rest;
  const Ran failed = tool(alone);
  CHECK(failed.code == 4);
  CHECK(contains(failed.err, "error: sm_80 gemm x=q8_1 w=nf4 y=f32 m=2 n=64 k=256: only the reference kernel"));
  CHECK(failed.json()["failed"] == 1);
  const Ran told = tool(alone + " --reference");
  CHECK(told.code == 0);
  CHECK(contains(told.err, "warning: only the reference kernel"));
  CHECK(told.json()["compiled"] > 0);
}

TEST_CASE("cli: without --arch and without a GPU the CPU is the target") {
  const std::string problem = "'gemm x=q8_1 w=q4_0 y=f32 m=4 n=384 k=1536' " + cache_flag("cpu.db") + " ";
  for (const char* command : {"plan ", "emit ", "prewarm ", "cache explain "}) {
    INFO(command);
    const Ran r = tool(command + problem);
    INFO(r.err);
    CHECK(r.code == 0);
    CHECK(contains(r.err, "this machine's CPU"));
  }
  CHECK(contains(tool("plan --json " + problem).json()["problem"].get<std::string>(), "pack=panels"));
  CHECK(contains(tool("plan --json --packed --arch sm_90a " + problem).json()["problem"].get<std::string>(),
                 "pack=tiles"));
}

TEST_CASE("cli: completion scripts know the commands, their options and the targets") {
  const auto complete = [](const std::string& words, int at) {
    return shell("bash -c 'eval \"$(" + tool_path() + " completion bash)\"; COMP_WORDS=(" + words +
                 "); COMP_CWORD=" + std::to_string(at) + "; _tilewright; echo \"${COMPREPLY[@]}\"'")
        .out;
  };
  CHECK(complete("tilewright pre", 1) == "prewarm\n");
  CHECK(contains(complete("tilewright cache \"\"", 2), "verify"));
  CHECK(complete("tilewright cache ls --ki", 3) == "--kind\n");
  CHECK(complete("tilewright plan --arch sm_90", 3) == "sm_90a\n");
  CHECK(contains(complete("tilewright prewarm --top 4 --", 4), "--workload"));
  // Fields of the problem, and what a field may be; bash ends words at '='.
  CHECK(contains(complete("tilewright plan gemm x", 3), "x= x_from="));
  CHECK(contains(complete("tilewright plan gemm x = q8_1 w = q4_", 8), "q4_0 q4_1 q4_k"));
  CHECK(complete("tilewright plan gemm act = si", 5) == "silu\n");
  CHECK(complete("tilewright plan cast rounding = s", 5) == "stochastic\n");
  CHECK(contains(complete("tilewright plan gemm --ar", 3), "--arch"));
  for (const char* name : {"bash", "zsh", "fish"}) {
    const Ran r = tool(std::string("completion ") + name);
    CHECK(r.code == 0);
    for (const char* part : {"prewarm", "plot", "doctor", "sm_90a", "workload"}) CHECK(contains(r.out, part));
    if (shell(std::string("command -v ") + name).code != 0) continue;
    CHECK(shell(tool_path() + "completion " + name + " | " + name + " -n").code == 0);
  }
  refused("completion tcsh", 1, "tcsh");
}

TEST_CASE("cli: the manual page has every command and option") {
  const Ran r = tool("man");
  CHECK(r.code == 0);
  CHECK(r.err.empty());
  for (const char* part :
       {".TH TILEWRIGHT 1", ".SS cache verify", "\\-\\-workload", ".SH PROBLEMS AND EXIT STATUS", "x_from"})
    CHECK(contains(r.out, part));
  CHECK(tool("man --json").json()["roff"].get<std::string>().starts_with(".TH"));
  if (shell("command -v groff").code != 0) return;
  CHECK(shell(tool_path() + " man | groff -man -Tutf8 -ww 2>&1 >/dev/null").out.empty());
}

TEST_CASE("cli: output that nobody takes is an error on stdout, and nothing on stderr") {
  const std::string quiet = "formats 2>/dev/null";
  CHECK(shell(tool_path() + quiet + " >/dev/full").code == 4);
  CHECK(shell(tool_path() + quiet + " >&-").code == 4);
  for (const char* lost : {"2>/dev/full", "2>&-"}) {
    INFO(lost);
    CHECK(shell(tool_path() + "plan nope " + lost).code == 1);
    CHECK(shell("TILEWRIGHT_JOBS=none " + tool_path() + "plan --arch sm_80 " + kStored + lost).code == 0);
  }
}

TEST_CASE("cli: what options allow is said in words") {
  refused("cache ls --limit -1", 1, "at least 0");
  for (const char* size : {"-1", "-1K", "many", "99999999999T"}) {
    INFO(size);
    refused("cache gc --max-bytes " + (size + cache_flag("sizes.db")), 1, "--max-bytes");
  }
  refused("run --cpu --seed -1 " + std::string(kCast), 1, "at least 0");
  refused("cache ls --cache ''", 1, "must not be empty");
  refused("cache export ''", 1, "must not be empty");
  const std::string cache = cache_flag("sizes.db");
  refused("prewarm --arch sm_80 --workload -" + cache, 1, "at least one problem");
  refused("tune --workload -" + cache, 1, "at least one problem");
  std::ofstream(scratch() / "sizes.db").flush();
  ::chmod((scratch() / "sizes.db").c_str(), 0600);
  CHECK(tool("cache gc --max-bytes 20M" + cache).code == 0);
}

TEST_CASE("cli: without a home the tool says which variables are missing") {
  for (const char* command : {"cache ls", "prewarm --arch sm_80 --workload tests/readme/workload.txt"}) {
    INFO(command);
    const Ran r = shell("env -u HOME -u XDG_CACHE_HOME -u TILEWRIGHT_CACHE " + tool_path() + command + " 2>&1");
    CHECK(r.code == 4);
    for (const char* name : {" HOME", "XDG_CACHE_HOME", "TILEWRIGHT_CACHE"}) CHECK(contains(r.out, name));
  }
}

TEST_CASE("cli: prewarm counts what the cache's cap has evicted again, of all targets, and gives 4") {
  // The kernels of one target take 0.4 MiB.
  const std::string prewarm =
      "prewarm --top 10 --no-buckets --json \"gemm x=f16 w=q4_k y=f16 m=512 n=4096 k=4096\"" + cache_flag("capped.db");
  const std::string cap = "TILEWRIGHT_CACHE_CAP=1048576";
  const Ran one = tool(prewarm + "--arch sm_80", cap);
  INFO(one.out << one.err);
  CHECK(one.code == 0);
  CHECK(one.json()["evicted"] == 0);
  const Ran all = tool(prewarm + "--arch sm_80,sm_86,sm_89,sm_120", cap);
  INFO(all.out << all.err);
  CHECK(all.code == 4);
  CHECK(all.json()["failed"] == 0);
  CHECK(all.json()["evicted"] > 0);
  CHECK(contains(all.err, "error: " + all.json()["evicted"].dump() + " binar"));
  CHECK(contains(all.err, "TILEWRIGHT_CACHE_CAP"));
}

TEST_CASE("cli: help is --help") {
  CHECK(tool("help").out == tool("--help").out);
  CHECK(tool("help").code == 0);
  CHECK(tool("help plan").out == tool("plan --help").out);
  refused("help nothing", 1, "plan");
}

TEST_CASE("cli: a file that is no cache is neither moved nor said to be repaired") {
  const std::string cache = cache_flag("thesis.txt");
  const std::string path = scratch() / "thesis.txt";
  std::ofstream(path) << "A thesis, of which there is one copy.";
  for (const char* command : {"doctor", "cache verify --repair --json", "cache gc"}) {
    INFO(command);
    CHECK(tool(command + cache).code != 0);
    CHECK(fs::file_size(path) == 37);
  }
  CHECK(tool("cache verify --repair --json" + cache).json()["repaired"].empty());
}
