// SPDX-License-Identifier: Apache-2.0
#include "jit/cpu/llvm.h"

#include <atomic>
#include <thread>

#include "cpu_test.h"
#include "jit/cpu/object.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

const Arch& v3() { return arch("x86-64-v3"); }

CompileError compile_error(const std::string& text, const Arch& target = v3()) {
  try {
    compile(ir(text), target, llvm());
  } catch (const CompileError& e) {
    return e;
  }
  FAIL("compiled");
  std::abort();
}

}  // namespace

TEST_CASE("IR becomes an object that the loader takes") {
  const Binary b = compile(ir(kNumbers), v3(), llvm());
  CHECK(b.target == "x86-64-v3");
  CHECK(b.entry == "k");
  CHECK(b.seconds > 0);
  CHECK(jit::cpu::object_defect(b.image).empty());
  CHECK(compile(ir(kNumbers), v3(), llvm()).image == b.image);
}

TEST_CASE("every target compiles") {
  for (const Arch& target : cpu_archs()) {
    INFO(target.name);
    CHECK_FALSE(compile(ir(kNumbers), target, llvm()).image.empty());
  }
}

TEST_CASE("a text that is not IR, or not well formed, is an error that says why") {
  CHECK(compile_error("define void @k(").log().find("expected type") != std::string::npos);
  CHECK(compile_error("define i32 @k() {\n  ret void\n}\n").log().find("value doesn't match function result type") !=
        std::string::npos);
  CHECK_FALSE(compile_error(std::string("\0\xff\x01 define", 10)).log().empty());
  // A call of a library that there is not.
  CHECK(compile_error("declare void @elsewhere()\ndefine void @k() #0 {\n  call void @elsewhere()\n  ret void\n}\n"
                      "attributes #0 = { nounwind }\n")
            .log()
            .find("undefined symbol elsewhere") != std::string::npos);
  const Error e = refusal(
      [] { compile(ir("define void @other() #0 {\n  ret void\n}\nattributes #0 = { nounwind }\n"), v3(), llvm()); });
  CHECK(e.code() == ErrorCode::compile_failed);
  CHECK(e.value() == "k");
}

// LLVM takes it for a fatal error, by which it would end the process.
TEST_CASE("an instruction that the target does not have is an error, and the process goes on") {
  const char* const text =
      "declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <16 x i32>, <16 x i32>)\n"
      "define void @k(ptr %p) {\n"
      "  %a = load <16 x i32>, ptr %p\n"
      "  %b = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %a, <16 x i32> %a, <16 x i32> %a)\n"
      "  store <16 x i32> %b, ptr %p\n"
      "  ret void\n"
      "}\n";
  for (int i = 0; i < 3; ++i) {
    const std::string log = compile_error(text).log();
    CHECK(log.find("a fatal error of LLVM, which loses the memory of this compilation, some MB: Do not know how") == 0);
    CHECK(log.back() == '!');  // no line ends
  }
  CHECK_FALSE(compile(ir(kNumbers), v3(), llvm()).image.empty());
}

TEST_CASE("threads compile side by side") {
  const Binary wanted = compile(ir(kNumbers), v3(), llvm());
  std::atomic<int> equal{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) equal += compile(ir(kNumbers), v3(), llvm()).image == wanted.image;
    });
  for (std::thread& t : threads) t.join();
  CHECK(equal == 40);
}

TEST_CASE("a library that is none is an error that names it") {
  for (const char* path : {"/nonexistent/libLLVM.so", "/", "/etc/passwd"}) {
    INFO(path);
    CompileOptions options;
    options.llvm = path;
    const Error e = refusal([&] { compile(ir(kNumbers), v3(), options); });
    CHECK(e.code() == ErrorCode::library_missing);
    CHECK(e.field() == "libLLVM");
    CHECK(e.value() == path);
    CHECK(e.allowed().find("TILEWRIGHT_LLVM") != std::string::npos);
  }
  CompileOptions other;
  other.llvm = "libm.so.6";
  CHECK(refusal([&] { compile(ir(kNumbers), v3(), other); }).allowed().find("has no function LLVM") !=
        std::string::npos);
}

TEST_CASE("the compiler's version is known") {
  const CompilerInfo info = compiler_info(llvm(), v3());
  CHECK(info.version.find("LLVM") != std::string::npos);
  CHECK(info.path.find("LLVM") != std::string::npos);
}
