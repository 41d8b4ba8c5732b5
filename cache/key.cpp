// SPDX-License-Identifier: Apache-2.0
#include "cache/key.h"

#include <bit>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define TILEWRIGHT_SHA_NI 1
#endif

namespace tilewright {
namespace cache {
namespace {

constexpr std::uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr char kHex[] = "0123456789abcdef";

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

bool must_escape(char c, std::string_view also) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f || c == '\\' || also.find(c) != std::string_view::npos;
}

#ifdef TILEWRIGHT_SHA_NI
// The processor's own rounds: five times as fast, and every stored kernel is hashed before it is loaded.
bool has_sha() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1) && __builtin_cpu_supports("sse4.1");
  }();
  return has;
}

__attribute__((target("sha,sse4.1,ssse3"))) void block_sha(std::uint32_t* state, const std::uint8_t* data) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  // The instructions want the state as {a b e f} and {c d g h}.
  __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
  __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
  low = _mm_shuffle_epi32(low, 0xb1), high = _mm_shuffle_epi32(high, 0x1b);
  __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
  const __m128i abef_before = abef, cdgh_before = cdgh;
  __m128i w[16];
  for (int i = 0; i < 16; ++i) {
    if (i < 4) {
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i)), swap);
    } else {
      const __m128i partial =
          _mm_add_epi32(_mm_sha256msg1_epu32(w[i - 4], w[i - 3]), _mm_alignr_epi8(w[i - 1], w[i - 2], 4));
      w[i] = _mm_sha256msg2_epu32(partial, w[i - 1]);
    }
    const __m128i k = _mm_add_epi32(w[i], _mm_loadu_si128(reinterpret_cast<const __m128i*>(kRound + 4 * i)));
    cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
    abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0e));
  }
  abef = _mm_add_epi32(abef, abef_before), cdgh = _mm_add_epi32(cdgh, cdgh_before);
  low = _mm_shuffle_epi32(abef, 0x1b), high = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(low, high, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(high, low, 8));
}
#endif

}  // namespace

void Sha256::block(const std::uint8_t* data) {
#ifdef TILEWRIGHT_SHA_NI
  if (rounds_ == Rounds::fastest && has_sha()) return block_sha(state_.data(), data);
#endif
  std::uint32_t w[64];
  for (int i = 0; i < 16; ++i) {
    w[i] = std::uint32_t{data[4 * i]} << 24 | std::uint32_t{data[4 * i + 1]} << 16 |
           std::uint32_t{data[4 * i + 2]} << 8 | data[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::uint32_t out[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state_[i] += out[i];
}

void Sha256::update(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  auto* in = static_cast<const std::uint8_t*>(data);
  std::size_t have = bytes_ % 64;
  bytes_ += bytes;
  if (have != 0) {
    const std::size_t take = std::min(bytes, 64 - have);
    std::memcpy(buffer_.data() + have, in, take);
    in += take, bytes -= take;
    if (have + take < 64) return;
    block(buffer_.data());
  }
  for (; bytes >= 64; in += 64, bytes -= 64) block(in);
  std::memcpy(buffer_.data(), in, bytes);
}

std::array<std::uint8_t, 32> Sha256::digest() {
  const std::uint64_t bits = bytes_ * 8;
  const std::uint8_t pad[72] = {0x80};
  const std::size_t have = bytes_ % 64;
  update(pad, (have < 56 ? 56 : 120) - have);
  std::uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<std::uint8_t>(bits >> (56 - 8 * i));
  update(length, 8);
  std::array<std::uint8_t, 32> out;
  for (int i = 0; i < 32; ++i) out[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

std::string Sha256::hex() {
  std::string text;
  for (std::uint8_t byte : digest()) text += {kHex[byte >> 4], kHex[byte & 15]};
  return text;
}

FieldHash& FieldHash::add(std::string_view field) {
  return add(std::as_bytes(std::span<const char>(field.data(), field.size())));
}

FieldHash& FieldHash::add(std::span<const std::byte> field) {
  std::uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<std::uint8_t>(std::uint64_t{field.size()} >> (8 * i));
  hash_.update(length, 8);
  hash_.update(field.data(), field.size());
  return *this;
}

FieldHash& FieldHash::add(std::int64_t value) { return add(std::to_string(value)); }

FieldHash& FieldHash::add(double value) { return add(static_cast<std::int64_t>(std::bit_cast<std::uint64_t>(value))); }

std::string escape(std::string_view text, std::string_view also) {
  std::string out;
  out.reserve(text.size());
  for (char c : text) {
    if (!must_escape(c, also)) {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
  }
  return out;
}

std::optional<std::string> unescape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    if (text.size() - i < 4 || text[i + 1] != 'x') return std::nullopt;
    const int high = hex_digit(text[i + 2]), low = hex_digit(text[i + 3]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 3;
  }
  return out;
}

std::string kernel_hash(const Key& key) {
  Key kernel;
  for (const auto& [tag, value] : key.fields()) {
    if (tag != "compiler") kernel.add(tag, value);
  }
  return kernel.hash();
}

std::string field_of(std::string_view transcript, std::string_view tag) {
  while (!transcript.empty()) {
    const std::string_view line = transcript.substr(0, transcript.find('\n'));
    if (line.size() > tag.size() && line.starts_with(tag) && line[tag.size()] == '=')
      return unescape(line.substr(tag.size() + 1)).value_or(std::string());
    transcript.remove_prefix(std::min(line.size() + 1, transcript.size()));
  }
  return {};
}

std::optional<Key> parse_transcript(std::string_view text) {
  Key key;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::size_t equals = text.find('=');
    if (end == std::string_view::npos || equals > end) return std::nullopt;
    const auto tag = unescape(text.substr(0, equals));
    const auto value = unescape(text.substr(equals + 1, end - equals - 1));
    if (!tag || !value) return std::nullopt;
    key.add(*tag, *value);
    text.remove_prefix(end + 1);
  }
  return key;
}

}  // namespace cache

Key& Key::add(std::string_view tag, std::string_view value) {
  fields_.emplace_back(tag, value);
  return *this;
}

Key& Key::add(std::string_view tag, std::int64_t value) { return add(tag, std::string_view(std::to_string(value))); }

std::string Key::transcript() const {
  std::string text;
  for (const auto& [tag, value] : fields_) text += cache::escape(tag, "=") + '=' + cache::escape(value) + '\n';
  return text;
}

std::string Key::hash() const {
  cache::FieldHash hash("tilewright key 1");
  for (const auto& [tag, value] : fields_) hash.add(std::string_view(tag)).add(std::string_view(value));
  return hash.hex();
}

std::string sha256_hex(std::string_view bytes) {
  cache::Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

}  // namespace tilewright
