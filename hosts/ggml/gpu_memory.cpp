// SPDX-License-Identifier: Apache-2.0
#include "hosts/ggml/gpu_memory.h"

#include <iterator>
#include <memory>
#include <vector>

#include "hosts/ggml/tensor.h"

namespace tilewright::ggml::gpu {
namespace {

// These callbacks cannot report a failure, so that the GPU's next graph does.
template <class Do>
void kept(const char* what, ggml_backend_buffer_t buffer, const Do& action) {
  if (!logged(what, action)) of(buffer->buft->device).failed = true;
}

std::byte* at(const ggml_tensor* t, std::size_t offset) { return static_cast<std::byte*>(t->data) + offset; }

const ggml_backend_buffer_i kBuffer = {
    .free_buffer = [](ggml_backend_buffer_t b) { delete &of(b); },
    .get_base = [](ggml_backend_buffer_t b) { return of(b).data(); },
    .init_tensor = nullptr,
    .memset_tensor =
        [](ggml_backend_buffer_t b, ggml_tensor* t, std::uint8_t value, std::size_t offset, std::size_t size) {
          kept("memset_tensor", b, [&] {
            const std::vector<std::uint8_t> bytes(size, value);
            of(b).set(at(t, offset), bytes.data(), size);
          });
        },
    .set_tensor = [](ggml_backend_buffer_t b, ggml_tensor* t, const void* data, std::size_t offset,
                     std::size_t size) { kept("set_tensor", b, [&] { of(b).set(at(t, offset), data, size); }); },
    .get_tensor = [](ggml_backend_buffer_t b, const ggml_tensor* t, void* data, std::size_t offset,
                     std::size_t size) { kept("get_tensor", b, [&] { of(b).get(at(t, offset), data, size); }); },
    .set_tensor_2d = nullptr,
    .get_tensor_2d = nullptr,
    .cpy_tensor = nullptr,
    .clear = [](ggml_backend_buffer_t b, std::uint8_t value) { kept("clear", b, [&] { of(b).clear(value); }); },
    .reset = nullptr,
};

}  // namespace

Packed::Packed(const Device& device, const Layer& by, const ggml_tensor* w)
    : end(static_cast<const std::byte*>(w->data) + ggml_nbytes(w)),
      data_bytes(aligned(by.weight_bytes(StreamName::data))),
      matrix_bytes(data_bytes + aligned(by.weight_bytes(StreamName::scales))) {
  memory = Memory(device, matrix_bytes * static_cast<std::size_t>(matrices(w)));
}

void Buffer::set(const void* to, const void* from, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  invalidate(to, bytes);
  memory_.upload({static_cast<const std::byte*>(from), bytes}, offset(to));
}

void Buffer::get(const void* from, void* to, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  memory_.download({static_cast<std::byte*>(to), bytes}, offset(from));
}

void Buffer::clear(std::uint8_t value) {
  const std::lock_guard lock(mutex_);
  packed_.clear();
  memory_.fill(value);
}

const Packed& Buffer::packed(const ggml_tensor* w, const Layer& layer, const OwnedStream& stream) {
  const std::lock_guard lock(mutex_);
  const std::pair<const void*, const Layer*> key(w->data, &layer);
  if (const auto found = packed_.find(key); found != packed_.end()) return found->second;
  Packed p(gpu_.kernels.device(), layer, w);
  for (std::int64_t i = 0; i < matrices(w); ++i)
    layer.pack(stream.get(), {.data = static_cast<const std::byte*>(w->data) + static_cast<std::size_t>(i) * w->nb[2]},
               {.data = p.matrix(i), .scales = p.matrix(i) + p.data_bytes});
  stream.synchronize();
  return packed_.emplace(key, std::move(p)).first->second;
}

std::size_t Buffer::offset(const void* p) const {
  return static_cast<std::size_t>(static_cast<const std::byte*>(p) - static_cast<const std::byte*>(memory_.data()));
}

void Buffer::invalidate(const void* from, std::size_t bytes) {
  const auto last = packed_.lower_bound({static_cast<const std::byte*>(from) + bytes, nullptr});
  for (auto i = packed_.begin(); i != last;) i = i->second.end > from ? packed_.erase(i) : std::next(i);
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, std::size_t size) {
  std::unique_ptr<Buffer> buffer;
  logged("alloc_buffer", [&] { buffer = std::make_unique<Buffer>(of(type->device), size); });
  return buffer ? ggml_backend_buffer_init(type, kBuffer, buffer.release(), size) : nullptr;
}

}  // namespace tilewright::ggml::gpu
