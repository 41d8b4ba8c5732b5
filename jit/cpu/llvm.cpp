// SPDX-License-Identifier: Apache-2.0
#include "jit/cpu/llvm.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <setjmp.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>

#include <tilewright/error.h>

#include "jit/shared_library.h"

namespace tilewright::jit::cpu {
namespace {

constexpr int kNewest = 22, kOldest = 15;  // before 15, pointers had types in IR

using Bool = int;
using Context = struct LlvmContext*;
using ModuleRef = struct LlvmModule*;
using Buffer = struct LlvmBuffer*;
using Target = struct LlvmTarget*;
using Machine = struct LlvmMachine*;
using Diagnostic = struct LlvmDiagnostic*;

// Numbers of llvm-c.
constexpr int kReturnStatus = 2, kLevelDefault = 2, kRelocPic = 2, kModelSmall = 3, kObjectFile = 1, kError = 0;

// What a fatal error of LLVM returns to.
thread_local jmp_buf* fatal_exit = nullptr;
thread_local std::string* fatal_reason = nullptr;

// File names of version N, by which its packages install it.
std::vector<std::string> names_of(int version) {
  return {fmt::format("libLLVM.so.{}.1", version), fmt::format("libLLVM-{}.so.1", version),
          fmt::format("libLLVM-{}.so", version), fmt::format("/usr/lib/llvm-{}/lib/libLLVM.so.1", version)};
}

}  // namespace

// As llvm-c/Core.h, IRReader.h, Analysis.h, Target.h, TargetMachine.h and ErrorHandling.h declare them.
struct Llvm::Functions {
  Context (*context_create)();
  void (*context_dispose)(Context);
  void (*set_diagnostics)(Context, void (*handler)(Diagnostic, void*), void*);
  char* (*describe)(Diagnostic);
  int (*severity)(Diagnostic);
  Buffer (*buffer_of)(const char*, std::size_t, const char* name);
  Bool (*parse)(Context, Buffer, ModuleRef*, char** message);  // takes the buffer
  Bool (*verify)(ModuleRef, int action, char** message);
  void (*module_dispose)(ModuleRef);
  void (*set_triple)(ModuleRef, const char*);
  Bool (*target_of)(const char* triple, Target*, char** message);
  Machine (*machine_create)(Target, const char* triple, const char* cpu, const char* features, int level, int reloc,
                            int model);
  void (*machine_dispose)(Machine);
  Bool (*emit)(Machine, ModuleRef, int kind, char** message, Buffer*);
  const char* (*buffer_start)(Buffer);
  std::size_t (*buffer_size)(Buffer);
  void (*buffer_dispose)(Buffer);
  void (*message_dispose)(char*);
  void (*install_fatal)(void (*)(const char*));
};

// One compilation. Outside run(), so that a jump out of it skips no destructor of ours.
struct Llvm::Job {
  const std::string& text;
  const CpuTarget& target;
  const Functions* call;
  std::vector<std::byte> object = {};
  std::string failure = {};
};

namespace {

template <class F>
void bind(void* library, F*& function, const char* name, std::string& missing) {
  function = reinterpret_cast<F*>(::dlsym(library, name));
  if (!function && missing.empty()) missing = name;
}

// Both targets that the library may be built for have these entry points, named after them.
void initialize_targets(void* library) {
  for (const char* target : {"X86", "AArch64"})
    for (const char* part : {"TargetInfo", "Target", "TargetMC", "AsmPrinter"}) {
      const std::string name = fmt::format("LLVMInitialize{}{}", target, part);
      if (auto initialize = reinterpret_cast<void (*)()>(::dlsym(library, name.c_str()))) initialize();
    }
}

// LLVM has no function that tells its version before 16; the file's name and size stand for it.
std::string version_of(void* library, const std::string& path) {
  if (auto get = reinterpret_cast<void (*)(unsigned*, unsigned*, unsigned*)>(::dlsym(library, "LLVMGetVersion"))) {
    unsigned major = 0, minor = 0, patch = 0;
    get(&major, &minor, &patch);
    return fmt::format("LLVM {}.{}.{}", major, minor, patch);
  }
  struct stat s = {};
  ::stat(path.c_str(), &s);
  return fmt::format("{}, {} bytes", std::filesystem::path(path).filename().string(), s.st_size);
}

// Opens the library, or says what was tried.
void* find(const std::string& path, std::string& tried) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const auto open = [&](const std::string& file) -> void* {
    std::string why;
    void* library = open_shared_library(file, why);
    if (!library && (file.find('/') == std::string::npos || fs::exists(file, failed)))
      tried += (tried.empty() ? "" : "; ") + why;
    return library;
  };
  if (!path.empty() && !fs::is_directory(path, failed)) {
    void* library = open(path);
    if (!library && tried.empty()) tried = path + ": no such file";
    return library;
  }
  for (int version = kNewest; version >= kOldest; --version)
    for (const std::string& name : names_of(version)) {
      std::string why;
      if (path.empty()) {
        if (void* library = open_shared_library(name, why)) return library;
      } else if (name[0] != '/' && fs::exists(fs::path(path) / name, failed)) {
        if (void* library = open((fs::path(path) / name).string())) return library;
      }
    }
  if (tried.empty())
    tried = fmt::format("no libLLVM of version {} down to {} {}", kNewest, kOldest,
                        path.empty() ? "where the dynamic loader looks" : "in " + path);
  return nullptr;
}

}  // namespace

Llvm::Llvm(void* library) {
  auto* f = new Functions;  // as long as the library: for ever
  std::string missing;
  bind(library, f->context_create, "LLVMContextCreate", missing);
  bind(library, f->context_dispose, "LLVMContextDispose", missing);
  bind(library, f->set_diagnostics, "LLVMContextSetDiagnosticHandler", missing);
  bind(library, f->describe, "LLVMGetDiagInfoDescription", missing);
  bind(library, f->severity, "LLVMGetDiagInfoSeverity", missing);
  bind(library, f->buffer_of, "LLVMCreateMemoryBufferWithMemoryRangeCopy", missing);
  bind(library, f->parse, "LLVMParseIRInContext", missing);
  bind(library, f->verify, "LLVMVerifyModule", missing);
  bind(library, f->module_dispose, "LLVMDisposeModule", missing);
  bind(library, f->set_triple, "LLVMSetTarget", missing);
  bind(library, f->target_of, "LLVMGetTargetFromTriple", missing);
  bind(library, f->machine_create, "LLVMCreateTargetMachine", missing);
  bind(library, f->machine_dispose, "LLVMDisposeTargetMachine", missing);
  bind(library, f->emit, "LLVMTargetMachineEmitToMemoryBuffer", missing);
  bind(library, f->buffer_start, "LLVMGetBufferStart", missing);
  bind(library, f->buffer_size, "LLVMGetBufferSize", missing);
  bind(library, f->buffer_dispose, "LLVMDisposeMemoryBuffer", missing);
  bind(library, f->message_dispose, "LLVMDisposeMessage", missing);
  bind(library, f->install_fatal, "LLVMInstallFatalErrorHandler", missing);
  call_ = f;
  Dl_info info = {};
  if (f->context_create && ::dladdr(reinterpret_cast<void*>(f->context_create), &info) && info.dli_fname) {
    std::error_code failed;
    const auto real = std::filesystem::canonical(info.dli_fname, failed);
    path_ = failed ? info.dli_fname : real.string();
  }
  if (!missing.empty())
    throw Error(ErrorCode::library_missing, "libLLVM", path_,
                fmt::format("has no function {}; install LLVM {} or newer", missing, kOldest));
  version_ = version_of(library, path_);
  initialize_targets(library);
  f->install_fatal(&on_fatal);
}

const Llvm& Llvm::open(const std::string& path) {
  static auto* const mutex = new std::mutex;
  static auto* const opened = new std::map<std::string, const Llvm*>;
  const std::lock_guard lock(*mutex);
  const Llvm*& llvm = (*opened)[path];
  if (llvm) return *llvm;
  std::string tried;
  void* library = find(path, tried);
  if (!library)
    throw Error(ErrorCode::library_missing, "libLLVM", path,
                fmt::format("was not found; install LLVM's library (Debian: libllvm19), or set TILEWRIGHT_LLVM "
                            "(Options::llvm) to it or to a directory that holds it. {}",
                            tried));
  llvm = new Llvm(library);
  return *llvm;
}

// LLVM calls this where it would end the process, from anywhere within a call of ours, and has no way back: the only
// other way out is this jump. It skips LLVM's own destructors. What these would have freed is lost, and neither the
// module nor its context nor the machine can be disposed of: they may be linked to objects of the frames that are gone.
void Llvm::on_fatal(const char* reason) {
  if (!fatal_exit) return;  // somebody else's call: LLVM ends the process, as it would have
  std::string_view said = reason ? reason : "";
  while (!said.empty() && said.back() == '\n') said.remove_suffix(1);
  *fatal_reason = fmt::format("a fatal error of LLVM, which loses the memory of this compilation, some MB: {}",
                              said.empty() ? "no reason given" : said);
  ::longjmp(*fatal_exit, 1);
}

// No object with a destructor may live here: a fatal error leaves by a jump.
void Llvm::run(Job& job) const {
  const Functions& f = *call_;
  const auto refuse = [&](char* message, const char* otherwise) {
    job.failure += message && *message ? message : job.failure.empty() ? otherwise : "";
    if (message) f.message_dispose(message);
  };
  Context context = f.context_create();
  f.set_diagnostics(
      context,
      [](Diagnostic diagnostic, void* out) {
        Job& owner = *static_cast<Job*>(out);
        if (owner.call->severity(diagnostic) != kError) return;
        char* text = owner.call->describe(diagnostic);
        owner.failure += owner.failure.empty() ? text : std::string("; ") + text;
        owner.call->message_dispose(text);
      },
      &job);
  ModuleRef module = nullptr;
  Machine machine = nullptr;
  Buffer object = nullptr;
  char* message = nullptr;
  Target target = nullptr;
  if (f.parse(context, f.buffer_of(job.text.data(), job.text.size(), "kernel"), &module, &message)) {
    refuse(message, "not LLVM IR");
    module = nullptr;
  } else if (f.verify(module, kReturnStatus, &message)) {
    refuse(message, "not a well-formed module");
  } else {
    if (message) f.message_dispose(message);
    message = nullptr;
    f.set_triple(module, job.target.triple);
    if (f.target_of(job.target.triple, &target, &message))
      refuse(message, "this LLVM has no such target");
    else
      machine =
          f.machine_create(target, job.target.triple, "", job.target.features, kLevelDefault, kRelocPic, kModelSmall);
    message = nullptr;
    if (machine && f.emit(machine, module, kObjectFile, &message, &object)) refuse(message, "no code was generated");
  }
  if (object) {
    const auto* bytes = reinterpret_cast<const std::byte*>(f.buffer_start(object));
    job.object.assign(bytes, bytes + f.buffer_size(object));
    f.buffer_dispose(object);
  }
  if (machine) f.machine_dispose(machine);
  if (module) f.module_dispose(module);
  f.context_dispose(context);
}

std::vector<std::byte> Llvm::compile(const std::string& text, const CpuTarget& target, std::string& failure) const {
  Job job{text, target, call_};
  std::string reason;
  jmp_buf exit;
  fatal_reason = &reason;
  fatal_exit = &exit;
  if (::setjmp(exit) == 0) run(job);
  fatal_exit = nullptr;
  fatal_reason = nullptr;
  failure = !reason.empty() ? reason : job.failure;
  if (failure.empty() && job.object.empty()) failure = "no code was generated";
  if (!failure.empty()) return {};
  return std::move(job.object);
}

}  // namespace tilewright::jit::cpu
