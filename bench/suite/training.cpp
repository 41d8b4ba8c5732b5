// SPDX-License-Identifier: Apache-2.0
// The training side against the host: fake_quant forward and backward bit for bit and its sums within their bound,
// unscale over many tensors that lie anywhere, update_scale.
#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <random>

#include "bench/suite/trial.h"

namespace tilewright::bench {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// A task's buffers on the host and on the device.
struct Buffers {
  Task task;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<std::byte>> spans;
  std::vector<Memory> memory;
  std::vector<void*> pointers;

  Buffers(Suite& s, const Problem& problem) {
    problem.operation().describe(problem, task);
    for (const Buffer& b : task.buffers) {
      bytes.emplace_back(b.bytes);
      if (b.fill) b.fill(bytes.back(), 5);
    }
    for (auto& b : bytes) spans.emplace_back(b);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      memory.emplace_back(s.device(), std::max<std::size_t>(1, bytes[i].size()));
      memory.back().fill(task.buffers[i].scratch ? 0 : 0xa5);
      pointers.push_back(memory.back().data());
    }
  }
  void upload() {
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (!task.buffers[i].output && !task.buffers[i].scratch) memory[i].upload(bytes[i]);
  }
  void download() {
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (task.buffers[i].output) memory[i].download(bytes[i]);
  }
};

void put(const Format& format, std::vector<std::byte>& bytes, std::size_t element, float value) {
  const auto size = static_cast<std::size_t>(format.total_bytes(1, 1));
  format.info().encode(&value, 1, 1, {&bytes[element * size], nullptr, nullptr}, 0);
}

// A task's own data with infinities and NaNs among it, launched twice over one workspace.
std::string task_against_host(Suite& s, const Problem& problem, const Kernel& kernel, Format format,
                              const std::vector<float>& specials) {
  Buffers b(s, problem);
  std::mt19937 random(3);
  const std::size_t elements = b.bytes[0].size() / static_cast<std::size_t>(format.total_bytes(1, 1));
  for (const float special : specials) put(format, b.bytes[0], random() % elements, special);
  b.upload();
  OwnedStream stream(s.device());
  std::vector<std::vector<std::byte>> first;
  for (const int launch : {0, 1}) {
    kernel.launch(stream.get(), b.task.arguments(b.pointers, problem.rows()), problem.rows(), problem.cols());
    stream.synchronize();
    b.download();
    if (const HostCheck check = problem.operation().check_on_host(problem, b.task, b.spans); !check.wrong.empty())
      return check.wrong;
    if (launch == 0) first = b.bytes;
  }
  return first == b.bytes ? "" : "a second launch gives other bits";
}

// Tensors of many sizes at any element of one allocation, in place, pieces as unscale_pieces() makes them.
std::string unscale_in_place(Suite& s, const Kernel& kernel, Format x, float special) {
  const auto size = static_cast<std::size_t>(x.total_bytes(1, 1));
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<std::pair<std::size_t, std::size_t>> tensors;  // first element, elements
  std::size_t end = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::size_t count = i % 50 == 7 ? 100000 + random() % 1000 : random() % 3000;
    tensors.emplace_back(end + random() % 4, count);
    end = tensors.back().first + count;
  }
  std::vector<std::byte> host((end + 4) * size);
  for (std::size_t i = 0; i < end + 4; ++i) put(x, host, i, normal(random));
  put(x, host, tensors[500].first + tensors[500].second / 2, special);
  Memory memory(s.device(), host.size()), scale(s.device(), 4), found(s.device(), 4), workspace(s.device(), 8);
  memory.upload(host), found.fill(0xa5), workspace.fill(0);
  const float by = 1536;
  scale.upload(std::as_bytes(std::span(&by, 1)));
  std::vector<UnscaleTensor> list;
  for (const auto& [first, count] : tensors)
    list.push_back({static_cast<const std::byte*>(memory.data()) + first * size, static_cast<std::int64_t>(count)});
  const std::vector<UnscalePiece> pieces = unscale_pieces(x, list);
  Memory table(s.device(), pieces.size() * sizeof(UnscalePiece));
  table.upload(std::as_bytes(std::span(pieces)));
  OwnedStream stream(s.device());
  UnscaleArgs args;
  args.table = static_cast<const UnscalePiece*>(table.data());
  args.scale = static_cast<const float*>(scale.data()), args.found_inf = static_cast<float*>(found.data());
  args.workspace = workspace.data(), args.pieces = static_cast<std::int64_t>(pieces.size());
  kernel.launch(stream.get(), args);
  stream.synchronize();
  std::vector<std::byte> got(host.size()), flag(4), left(8);
  memory.download(got), found.download(flag), workspace.download(left);
  std::vector<float> values(end + 4);
  x.info().decode({host.data(), nullptr, nullptr}, 1, static_cast<std::int64_t>(values.size()), values.data());
  const double factor = static_cast<float>(1.0 / by);
  for (const auto& [first, count] : tensors)
    for (std::size_t i = first; i < first + count; ++i) {
      const float product = static_cast<float>(values[i] * factor);
      std::uint32_t nan = 0x7fffffff;
      float canonical = product;
      if (product != product) std::memcpy(&canonical, &nan, 4);
      put(x, host, i, canonical);
    }
  for (std::size_t i = 0; i < host.size(); ++i)
    if (got[i] != host[i])
      return fmt::format("byte {} is {:02x}, expected {:02x}", i, static_cast<int>(got[i]), static_cast<int>(host[i]));
  float is = 0;
  std::memcpy(&is, flag.data(), 4);
  const float wanted = special - special == 0 ? 0.0f : 1.0f;
  if (is != wanted) return fmt::format("found_inf = {}, expected {}", is, wanted);
  return left == std::vector<std::byte>(8) ? "" : "the workspace is left dirty";
}

}  // namespace

void training_checks(Suite& s) {
  const bool one = s.extent() == Extent::one;
  std::vector<std::string> texts;
  for (const char* x : {"f32", "f16", "bf16"})
    for (const char* grad : {"", " grad=straight", " grad=learned"})
      for (const char* codes : {"", " qmin=-8 qmax=7", " qmin=0 qmax=255"})
        for (const char* scope : {"", " scope=row"})
          for (const char* sizes : {"rows=3 cols=7", "rows=67 cols=4096", "rows=300 cols=1235", "rows=2 cols=300000"}) {
            // (What is large takes the host long.)
            if (std::string_view(sizes) == "rows=2 cols=300000" && std::string_view(codes) != " qmin=-8 qmax=7")
              continue;
            if (one ? std::string_view(sizes) != "rows=3 cols=7" || *codes
                    : *codes == '\0' && s.extent() != Extent::full)
              continue;
            texts.push_back(fmt::format("fake_quant x={} {}{}{}{}", x, sizes, codes, scope, grad));
          }
  for (const char* x : {"f32", "f16", "bf16"}) {
    texts.push_back(fmt::format("unscale x={} pieces=7 elements=13", x));
    if (!one) texts.push_back(fmt::format("unscale x={} pieces=3000 elements=1000", x));
  }
  texts.push_back("update_scale interval=3");
  Ahead ahead(jobs_of(s));
  std::vector<std::shared_future<Kernel>> kernels;
  for (const std::string& text : texts)
    kernels.push_back(ahead.submit([&s, text] { return s.engine().prepare(Problem::parse(text), s.device()); }));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Problem problem = Problem::parse(texts[i]);
    const FakeQuant* f = problem.as<FakeQuant>();
    const Unscale* u = problem.as<Unscale>();
    const Format format = f ? f->x : u ? u->x : Format::parse("f32");
    // Of an infinite x a learned scale's gradient stays finite; update_scale's first buffer is the scale itself.
    std::vector<std::vector<float>> specials = {{}};
    if (f || u) specials.push_back({kInf, -kInf, kNan, 1e-41f, -0.0f});
    for (const auto& special : specials)
      s.check(texts[i] + (special.empty() ? "" : " with infinities"),
              [&, kernel = kernels[i]] { return task_against_host(s, problem, kernel.get(), format, special); });
  }
  for (const char* x : {"f32", "f16", "bf16"})
    for (const float special : {1.0f, kInf, kNan}) {
      if (special != 1.0f && std::string_view(x) != "bf16") continue;
      s.check(fmt::format("unscale of 1000 tensors of {} in place, one with {}", x, special), [&] {
        const Kernel kernel =
            s.engine().prepare(Problem::parse(fmt::format("unscale x={} pieces=3000", x)), s.device());
        return unscale_in_place(s, kernel, Format::parse(x), special);
      });
    }
  if (one) return;
  for (const char* text :
       {"unscale x=bf16 pieces=300", "unscale x=f32 pieces=65 elements=999", "fake_quant x=bf16 rows=65 cols=2304",
        "fake_quant x=f32 rows=65 cols=2304 scope=row grad=straight",
        "fake_quant x=bf16 rows=650 cols=2305 grad=learned",
        "fake_quant x=f16 rows=65 cols=2305 scope=row grad=learned"})
    s.check("candidates of " + std::string(text), [&] { return candidates_verify(s.engine(), s.device(), text, 24); });
}

}  // namespace tilewright::bench
