// SPDX-License-Identifier: Apache-2.0
// A weight out of a model file: example_05_load_weights [FILE.gguf|FILE.safetensors [TENSOR]]. Lists the file, decodes
// the tensor's first elements on the host, and where there is a GPU uploads it and prepares a gemm over it.
#include <tilewright/tilewright.h>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

using namespace tilewright;

namespace {

// What both kinds of file say about a tensor.
struct Weight {
  std::string name;
  std::string format;  // Tilewright's name; empty where it has none for these bytes
  std::int64_t rows = 0, cols = 0;
  std::vector<std::byte> bytes;
};

// The named tensor, or the first matrix that has a format.
template <class File>
Weight load(const File& file, const std::string& name) {
  const auto* chosen = name.empty() ? nullptr : &file.tensor(name);
  for (const auto& t : file.tensors()) {
    std::printf("%-36s %6lld x %-6lld %s\n", t.name.c_str(), static_cast<long long>(t.rows()),
                static_cast<long long>(t.cols()), t.format.empty() ? "-" : std::string(t.format).c_str());
    if (!chosen && !t.format.empty() && t.rows() > 1) chosen = &t;
  }
  if (!chosen) throw Error(ErrorCode::invalid_argument, "file", "", "has no matrix in a format of Tilewright");
  return {chosen->name, std::string(chosen->format), chosen->rows(), chosen->cols(), file.read(*chosen)};
}

void run(const std::string& path, const std::string& name) {
  const bool gguf = std::string_view(path).ends_with(".gguf");
  const Weight w = gguf ? load(Gguf::open(path), name) : load(Safetensors::open(path), name);
  if (w.format.empty())
    throw Error(ErrorCode::unsupported, "tensor", w.name, "has a type that is no format of Tilewright");
  const Format format = Format::parse(w.format);

  std::vector<float> values(static_cast<std::size_t>(w.rows * w.cols));
  format.info().decode({w.bytes.data(), nullptr, nullptr}, w.rows, w.cols, values.data());
  std::printf("\n%s begins with %g %g %g\n", w.name.c_str(), values[0], values[1], values[2]);

  const Problem problem = Problem::parse("gemm x=f16 w=" + w.format + " y=f16 m=1 n=" + std::to_string(w.rows) +
                                         " k=" + std::to_string(w.cols) + " weights=constant");
  std::printf("%s\n", problem.text().c_str());
  if (Device::count() == 0) return;
  const Device device = Device::open(0);
  Memory memory(device, w.bytes.size());
  memory.upload(w.bytes);
  Engine engine;
  const Kernel kernel = engine.prepare(problem, device);  // to be launched with args.w.data = memory.data()
  std::printf("prepared for %s\n", device.name().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : EXAMPLE_MODEL, argc > 2 ? argv[2] : "");
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
