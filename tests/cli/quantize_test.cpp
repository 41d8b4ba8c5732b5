// SPDX-License-Identifier: Apache-2.0
#include "tool.h"

using namespace cli_tool;

namespace {

constexpr const char* kModel = "examples/models/minilm-l6-v2-tiny.gguf ";

std::string out(const char* name) { return "--out '" + (scratch() / name) + "' "; }
std::string model_file() { return tilewright::paths::source_dir() + "/examples/models/minilm-l6-v2-tiny.gguf"; }
void removed(const char* name) { fs::remove(scratch() / name); }

}  // namespace

TEST_CASE("cli: quantize reports every layer, and replaces nothing unasked") {
  const std::string arguments = "quantize " + (kModel + ("--format q4_0 --only 'blk.0.*.f16' " + out("q.gguf")));
  const Json plan = tool(arguments + "--dry-run --json").json();
  CHECK(plan["written"] == false);
  CHECK_FALSE(fs::exists(scratch() / "q.gguf"));
  const Json report = tool(arguments + "--json").json();
  CHECK(report["bytes_after"] == plan["bytes_after"]);
  CHECK(report["bytes_after"] < report["bytes_before"]);
  int quantized = 0;
  for (const Json& t : report["tensors"]) {
    if (!t["quantized"]) {
      CHECK_FALSE(t["kept"].get<std::string>().empty());
      CHECK(t["bytes_before"] == t["bytes_after"]);
      continue;
    }
    ++quantized;
    CHECK(t["relative_rms"] > 0.01);
    CHECK(t["relative_rms"] < 0.2);
    CHECK(t["max_error"] > 0);
  }
  CHECK(quantized > 0);
  const std::string bytes = slurp(scratch() / "q.gguf");
  refused(arguments, 1, "exists");
  const Ran text = tool(arguments + "--force --jobs 1");
  CHECK(text.code == 0);
  CHECK(text.out.find("relative RMS") != std::string::npos);
  CHECK(text.out.find("blk.0.attn_q.weight.f16") != std::string::npos);
  CHECK(slurp(scratch() / "q.gguf") == bytes);
  // It is a model like any other.
  CHECK(tool("run --json \"gemm x=q8_1 w=q4_0 y=f32 m=1 n=384 k=384\" --tensor blk.0.attn_q.weight.f16 --model '" +
             (scratch() / "q.gguf") + "'")
            .json()["verified"] == true);
  removed("q.gguf");
}

TEST_CASE("cli: quantize names what is wrong") {
  const std::string model = std::string("quantize ") + kModel;
  refused("quantize", 1, "file");
  refused(model + out("q.gguf"), 1, "--format");
  refused(model + "--format q4_0", 1, "--out");
  refused(model + "--format q4_0 --out x.bin", 1, ".gguf or .safetensors");
  refused(model + "--format q9_0 " + out("q.gguf"), 1, "q9_0");
  refused(model + "--format int4_g128 " + out("q.gguf"), 1, "in GGUF");
  refused(model + "--format q4_0 --encoder best " + out("q.gguf"), 1, "amax7");
  refused(model + "--format q4_0 --packing gptq " + out("q.gguf"), 1, "packing");
  refused(model + "--format q4_0 --only nothing " + out("q.gguf"), 1, "only");
  refused(model + "--format q4_0 --resume " + out("q.gguf"), 1, "resume");
  refused(model + "--format int8_row " + out("q.safetensors"), 1, "is not a type of safetensors");  // its q4_0 tensors
  refused("quantize README.md --format q4_0 " + out("q.gguf"), 1, "header");
  refused("quantize /nonexistent.safetensors --format q4_0 " + out("q.gguf"), 1, "/nonexistent");
  refused(model + "--format q4_0 --only 'blk.0.*.f16' --out /nonexistent/q.gguf", 1, "/nonexistent/q.gguf.part");
  CHECK(tool(model + "--format q4_0 --json " + out("q.bin")).json()["error"]["field"] == "output");
}

TEST_CASE("cli: quantize's methods and importance, misused") {
  const std::string model = std::string("quantize ") + kModel + "--format q3_k " + out("q.gguf");
  refused(model + "--method gptq --calibration README.md", 1, "int4_g128");
  refused(model + "--method best", 1, "gptq, awq or rtn");
  refused(model + "--act-order", 1, "--method gptq");
  refused(model + "--clip --method gptq", 1, "--method awq");
  refused(model + "--fallback-rtn", 1, "--importance");
  refused(model + "--importance README.md", 1, ".npy, .safetensors or .gguf");
  refused(model + "--importance x.npy --encoder plain", 1, "ggml");
  refused(model + "--importance x.npy --method awq", 1, "without --method");
  const std::string int4 = std::string("quantize ") + kModel + "--format int4_g128 " + out("q.safetensors");
  refused(int4 + "--method gptq", 1, "at least one array");
  refused(int4 + "--method gptq --calibration README.md", 1, "must be a folder");
  refused(int4 + "--method gptq --calibration README.md --damping 2", 1, "damping");
  refused(int4 + "--method awq --calibration README.md --device 0", 1, "--method gptq");
  refused(int4 + "--method gptq --calibration README.md --device -1", 1, "--device");
  refused(int4 + "--method gptq --calibration README.md --device 0", 4, "needs an NVIDIA GPU");
}

TEST_CASE("cli: quantize on a full or read-only disk leaves nothing") {
  const std::string arguments = kModel + ("--format q4_0 --only 'blk.0.*.f16' " + out("full.gguf"));
  // A limit on a file's size is what a full disk is, without one.
  const Ran full = shell("ulimit -f 64; trap '' XFSZ; " + tool_path() + "quantize " + arguments);
  CHECK(full.code == 1);
  CHECK(full.err.find("full.gguf.part") != std::string::npos);
  CHECK_FALSE(fs::exists(scratch() / "full.gguf"));
  CHECK_FALSE(fs::exists(scratch() / "full.gguf.part"));
  CHECK_FALSE(fs::exists(scratch() / "full.gguf.part.journal"));
  if (::geteuid() == 0) return;  // who may write anywhere
  fs::create_directory(scratch() / "closed");
  fs::permissions(scratch() / "closed", fs::perms::owner_read | fs::perms::owner_exec);
  refused("quantize " + (kModel + std::string("--format q4_0 --only 'blk.0.*.f16' ")) + out("closed/q.gguf"), 1,
          "Permission");
}

TEST_CASE("cli: quantize never writes to what it reads, whatever its name") {
  const std::string model = scratch() / "own.gguf";
  fs::copy_file(model_file(), model);
  const std::string bytes = slurp(model), only = " --format q4_0 --only 'blk.0.*.f16' --force --out ";
  const fs::path folder = scratch().path;
  fs::create_hard_link(model, folder / "link.gguf");
  fs::create_symlink(model, folder / "soft.gguf");
  const std::string dotted = (folder / "." / "own.gguf").string();
  for (const std::string& out : {model, dotted, (folder / "link.gguf").string(), (folder / "soft.gguf").string()}) {
    INFO(out);
    refused("quantize '" + model + "'" + only + "'" + out + "'", 1, "which is read");
    CHECK(slurp(model) == bytes);
  }
  for (const char* name : {"own.gguf", "link.gguf", "soft.gguf"}) fs::remove(folder / name);
}

TEST_CASE("cli: quantize's own files are no pipes and no links") {
  const std::string model = std::string("quantize ") + kModel + "--format q4_0 --only 'blk.0.*.f16' " + out("own.gguf");
  const std::string journal = scratch() / "own.gguf.part.journal", part = scratch() / "own.gguf.part";
  REQUIRE(::mkfifo(journal.c_str(), 0600) == 0);
  refused(model, 1, "regular file");
  fs::remove(journal);
  const std::string kept = scratch() / "kept";
  std::ofstream(kept) << "kept";
  for (const std::string& name : {part, journal}) {
    INFO(name);
    fs::create_hard_link(kept, name);
    refused(model, 1, "hard link");
    CHECK(slurp(kept) == "kept");
    fs::remove(name);
  }
  CHECK_FALSE(fs::exists(part));
}
