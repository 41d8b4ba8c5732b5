// SPDX-License-Identifier: Apache-2.0
// Problems by text, by fields and as a struct; options by name; the catalogue; matrices on the host.
#include <cmath>
#include <set>

#include "capi/capi_test.h"

namespace tilewright::test {
namespace {

TEST_CASE("text, fields and struct say the same problem") {
  const char* text =
      "gemm x=q8_1 w=q4_0 y=bf16 m=3 n=128 k=256 pack=tiles bias=f32 act=gelu alpha=0.5 c=bf16 beta=2 "
      "workspace=65536 weights=constant";
  const ProblemHandle parsed = problem(text);

  const char* names[] = {"act",  "x",    "w",     "y", "m",    "n",         "k",
                         "pack", "bias", "alpha", "c", "beta", "workspace", "weights"};
  const char* values[] = {"gelu",  "q8_1", "q4_0", "bf16", "3", "128",   "256",
                          "tiles", "f32",  "0.5",  "bf16", "2", "65536", "constant"};
  tw_problem* made = nullptr;
  succeed([&](tw_error** e) { return tw_problem_create("gemm", names, values, std::size(names), &made, e); });
  const ProblemHandle created(made);

  tw_gemm g = TW_GEMM_INIT;
  g.x = "q8_1", g.w = "q4_0", g.y = "bf16";
  g.m = 3, g.n = 128, g.k = 256;
  g.pack = "tiles", g.bias = "f32", g.act = "gelu", g.c = "bf16";
  g.alpha = 0.5, g.beta = 2, g.workspace = 65536, g.constant_weights = 1;
  succeed([&](tw_error** e) { return tw_problem_from_gemm(&g, &made, e); });
  const ProblemHandle from_struct(made);

  CHECK(std::string(tw_problem_text(created.get())) == tw_problem_text(parsed.get()));
  CHECK(std::string(tw_problem_text(from_struct.get())) == tw_problem_text(parsed.get()));
  CHECK(std::string(tw_problem_operation(parsed.get())) == "gemm");
  CHECK(tw_problem_rows(parsed.get()) == 3);
  CHECK(tw_problem_cols(parsed.get()) == 128);
  CHECK(tw_problem_ops(parsed.get()) == 2.0 * 3 * 128 * 256);
  CHECK(tw_problem_min_bytes(parsed.get()) > 128 * 256 / 2);

  succeed([&](tw_error** e) { return tw_problem_with_rows(parsed.get(), 17, &made, e); });
  const ProblemHandle more(made);
  CHECK(tw_problem_rows(more.get()) == 17);
}

TEST_CASE("the struct's other fields reach the problem") {
  tw_gemm g = TW_GEMM_INIT;
  g.x = "e4m3", g.w = "e4m3", g.y = "e4m3";
  g.m = 8, g.n = 64, g.k = 128;
  g.accum = "fast", g.y_scale = 0.25;
  tw_problem* made = nullptr;
  succeed([&](tw_error** e) { return tw_problem_from_gemm(&g, &made, e); });
  CHECK(std::string(tw_problem_text(made)) == "gemm x=e4m3 w=e4m3 y=e4m3 m=8 n=64 k=128 accum=fast y_scale=0.25");
  tw_problem_release(made);
  tw_gemm scaled = TW_GEMM_INIT;
  scaled.x = "bf16", scaled.w = "nvfp4", scaled.y = "bf16", scaled.global = "div";
  scaled.m = 8, scaled.n = 64, scaled.k = 128;
  succeed([&](tw_error** e) { return tw_problem_from_gemm(&scaled, &made, e); });
  CHECK(std::string(tw_problem_text(made)) == "gemm x=bf16 w=nvfp4 y=bf16 m=8 n=64 k=128 global=div");
  tw_problem_release(made);
  tw_gemm grouped = TW_GEMM_INIT;
  grouped.x = grouped.w = grouped.y = "bf16";
  grouped.m = 8, grouped.n = 64, grouped.k = 128, grouped.groups = 4, grouped.group_layout = "masked";
  succeed([&](tw_error** e) { return tw_problem_from_gemm(&grouped, &made, e); });
  CHECK(std::string(tw_problem_text(made)) == "gemm x=bf16 w=bf16 y=bf16 m=8 n=64 k=128 groups=4 group_layout=masked");
  tw_problem_release(made);
  tw_gemm floats = TW_GEMM_INIT;
  floats.x = "q8_1", floats.w = "q4_0", floats.y = "f32", floats.x_from = "bf16";
  floats.m = 8, floats.n = 64, floats.k = 128;
  succeed([&](tw_error** e) { return tw_problem_from_gemm(&floats, &made, e); });
  CHECK(std::string(tw_problem_text(made)) == "gemm x=q8_1 w=q4_0 y=f32 m=8 n=64 k=128 x_from=bf16");
  tw_problem_release(made);
}

TEST_CASE("a value cannot bring fields along, and what is missing is named") {
  tw_problem* made = nullptr;
  const auto create = [&](const char* op, const char* name, const char* value) {
    return failure([&](tw_error** e) { return tw_problem_create(op, &name, &value, 1, &made, e); });
  };
  CHECK(create("gemm", "x", "f16 w=f16").field == "x");
  CHECK(create("gemm", "x", "").field == "x");
  CHECK(create("gemm", "x w", "f16").field == "name");
  CHECK(create("gemm", "x=f16 w", "f16").field == "name");
  CHECK(create("gem", "x", "f16").allowed.find("gemm") != std::string::npos);
  tw_gemm g = TW_GEMM_INIT;
  g.x = g.y = "f16";
  CHECK(failure([&](tw_error** e) { return tw_problem_from_gemm(&g, &made, e); }).field == "w");
  g.w = "f16", g.m = 1, g.n = 64, g.k = -8;
  CHECK(failure([&](tw_error** e) { return tw_problem_from_gemm(&g, &made, e); }).field == "k");
  g.k = 64, g.constant_weights = 7;
  CHECK(failure([&](tw_error** e) { return tw_problem_from_gemm(&g, &made, e); }).field == "constant_weights");
  g.constant_weights = 0, g.alpha = std::nan("");
  CHECK(failure([&](tw_error** e) { return tw_problem_from_gemm(&g, &made, e); }).field == "alpha");
}

TEST_CASE("buffers: what a launch reads and writes, computed and judged on the host") {
  const ProblemHandle p = problem("gemm x=f32 w=q4_0 y=f32 m=2 n=8 k=64");
  std::vector<std::string> names;
  std::vector<std::vector<float>> memory;  // floats, for alignment
  std::vector<void*> pointers;
  std::vector<size_t> bytes;
  for (int32_t i = 0; i < tw_problem_buffer_count(p.get()); ++i) {
    tw_buffer_info b = TW_BUFFER_INFO_INIT;
    succeed([&](tw_error** e) { return tw_problem_buffer(p.get(), i, &b, e); });
    names.push_back(b.name);
    memory.emplace_back(static_cast<size_t>(b.bytes + 15) / 4);
    pointers.push_back(memory.back().data());
    bytes.push_back(static_cast<size_t>(b.bytes));
    CHECK((b.output == 1) == (std::string(b.name) == "y.data"));
    CHECK(b.row_bytes * (b.row_bytes ? 2 : 0) == (b.row_bytes ? b.bytes : 0));
  }
  REQUIRE(names.size() == 3);
  CHECK(names == std::vector<std::string>{"x.data", "w.data", "y.data"});
  const std::vector<float> w(8 * 64, -2.0f);
  for (float& v : memory[0]) v = 0.5f;
  succeed([&](tw_error** e) {
    return tw_encode("q4_0", nullptr, w.data(), 8, 64, {pointers[1], nullptr, nullptr}, e);
  });
  succeed([&](tw_error** e) { return tw_compute_on_host(p.get(), pointers.data(), bytes.data(), 3, e); });
  for (int i = 0; i < 16; ++i) CHECK(memory[2][static_cast<size_t>(i)] == Approx(64 * 0.5 * -2.0));
  tw_host_check check = TW_HOST_CHECK_INIT;
  char* wrong = nullptr;
  succeed([&](tw_error** e) { return tw_check_on_host(p.get(), pointers.data(), bytes.data(), 3, &check, &wrong, e); });
  CHECK(wrong == nullptr);
  CHECK(check.outputs == 16);
  CHECK(check.of_bound <= 1);
  memory[2][5] += 1;
  succeed([&](tw_error** e) { return tw_check_on_host(p.get(), pointers.data(), bytes.data(), 3, &check, &wrong, e); });
  REQUIRE(wrong != nullptr);
  CHECK(std::string(wrong).find("y[0,5]") != std::string::npos);
  tw_free(wrong);

  bytes[1] -= 1;
  CHECK(failure([&](tw_error** e) { return tw_compute_on_host(p.get(), pointers.data(), bytes.data(), 3, e); }).field ==
        "w.data");
  CHECK(failure([&](tw_error** e) { return tw_compute_on_host(p.get(), pointers.data(), bytes.data(), 2, e); }).field ==
        "count");
  bytes[1] += 1;
  pointers[0] = static_cast<char*>(pointers[0]) + 4;
  CHECK(failure([&](tw_error** e) { return tw_compute_on_host(p.get(), pointers.data(), bytes.data(), 3, e); }).field ==
        "x.data");
}

TEST_CASE("options by name: each is taken or refused with what is allowed") {
  tw_options* options = nullptr;
  succeed([&](tw_error** e) { return tw_options_create(&options, e); });
  const OptionsHandle owned(options);
  const auto set = [&](const char* name, const char* value) {
    succeed([&](tw_error** e) { return tw_options_set(options, name, value, e); });
  };
  const auto refused = [&](const char* name, const char* value) {
    return failure([&](tw_error** e) { return tw_options_set(options, name, value, e); });
  };
  for (const char* name : {"cache", "nvrtc", "driver", "templates", "record", "shipped"})
    set(name, "/somewhere"), set(name, "");
  for (const char* name : {"cache_read_only", "allow_shared", "same_nvrtc", "tune", "compile", "check_pointers"}) {
    set(name, "1");
    set(name, "0");
    CHECK(refused(name, "yes").allowed == "must be 0 or 1");
  }
  for (const char* name : {"cache_cap", "prepared_cap", "jobs"}) {
    set(name, "7");
    CHECK(refused(name, "7 bytes").field == name);
    CHECK(refused(name, "").field == name);
    CHECK(refused(name, "99999999999999999999").field == name);
  }
  CHECK(refused("jobs", "-1").field == "jobs");
  for (const char* level : {"error", "warn", "info", "debug"}) set("log_level", level);
  CHECK(refused("log_level", "loud").allowed.find("debug") != std::string::npos);
  CHECK(refused("cash", "x").allowed.find("cache_cap") != std::string::npos);
  CHECK(refused("cache", nullptr).field == "cache");
}

TEST_CASE("the catalogue names formats, architectures, operations and their fields") {
  std::set<std::string> names;
  for (int32_t i = 0; i < tw_format_count(); ++i) {
    tw_format_info f = TW_FORMAT_INFO_INIT;
    succeed([&](tw_error** e) { return tw_format_at(i, &f, e); });
    names.insert(f.name);
    CHECK(f.block >= 1);
    CHECK(f.stream_scope[TW_DATA] == 0);
    CHECK(std::string(f.title).size() > 3);
    for (int32_t k = 0; k < f.encoders; ++k) {
      const char* encoder = nullptr;
      succeed([&](tw_error** e) { return tw_format_encoder(f.name, k, &encoder, e); });
      CHECK(std::string(encoder).size() > 1);
    }
    CHECK(failure([&](tw_error** e) {
            const char* encoder = nullptr;
            return tw_format_encoder(f.name, f.encoders, &encoder, e);
          }).field == "index");
  }
  CHECK(names.count("q4_0") == 1);
  CHECK(names.count("nvfp4") == 1);
  tw_format_info f = TW_FORMAT_INFO_INIT;
  CHECK(failure([&](tw_error** e) { return tw_format_at(tw_format_count(), &f, e); }).field == "index");
  CHECK(failure([&](tw_error** e) { return tw_format_at(-1, &f, e); }).field == "index");
  succeed([&](tw_error** e) { return tw_format_find("nvfp4", &f, e); });
  CHECK(f.stream_scope[TW_SCALES] == 0);
  CHECK(f.stream_scope[TW_GLOBAL] == 2);
  CHECK(f.stream_bytes[TW_GLOBAL] == 4);

  bool hopper = false;
  for (int32_t i = 0; i < tw_arch_count(); ++i) {
    tw_arch_info a = TW_ARCH_INFO_INIT;
    succeed([&](tw_error** e) { return tw_arch_at(i, &a, e); });
    hopper |= std::string(a.name) == "sm_90a" && a.major == 9 && a.minor == 0;
  }
  CHECK(hopper);

  bool gemm = false;
  for (int32_t i = 0; i < tw_operation_count(); ++i) {
    const char *name = nullptr, *title = nullptr;
    succeed([&](tw_error** e) { return tw_operation_at(i, &name, &title, e); });
    gemm |= std::string(name) == "gemm";
    CHECK(tw_operation_field_count(name) > 0);
    tw_field_info field = TW_FIELD_INFO_INIT;
    succeed([&](tw_error** e) { return tw_operation_field(name, 0, &field, e); });
    CHECK(std::string(field.help).size() > 3);
  }
  CHECK(gemm);
  CHECK(tw_operation_field_count("no such") == 0);
  CHECK(tw_abi_version() == TW_ABI_VERSION);
  CHECK(std::string(tw_version()).find('.') != std::string::npos);
}

TEST_CASE("every format encodes and decodes through its streams") {
  for (int32_t i = 0; i < tw_format_count(); ++i) {
    tw_format_info f = TW_FORMAT_INFO_INIT;
    succeed([&](tw_error** e) { return tw_format_at(i, &f, e); });
    CAPTURE(f.name);
    const int64_t rows = 3, cols = 2 * std::max(f.block, 64);
    std::vector<float> values(static_cast<size_t>(rows * cols)), decoded(values.size());
    for (size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>(static_cast<int>(k * 37 % 15) - 7);
    float factor = 0;
    succeed([&](tw_error** e) { return tw_global_for(f.name, 7, &factor, e); });
    std::vector<std::vector<float>> streams;
    for (const tw_stream_name s : {TW_DATA, TW_SCALES, TW_GLOBAL}) {
      int64_t bytes = -1;
      succeed([&](tw_error** e) { return tw_stream_bytes(f.name, s, rows, cols, &bytes, e); });
      CHECK((bytes == 0) == (f.stream_scope[s] < 0));
      streams.emplace_back(static_cast<size_t>(bytes + 3) / 4);
    }
    const auto pointer = [&](size_t s) { return streams[s].empty() ? nullptr : streams[s].data(); };
    if (pointer(2)) *pointer(2) = factor;
    const tw_mutable_operand to = {pointer(0), pointer(1), pointer(2)};
    succeed([&](tw_error** e) { return tw_encode(f.name, nullptr, values.data(), rows, cols, to, e); });
    succeed([&](tw_error** e) {
      return tw_decode(f.name, {to.data, to.scales, to.global}, rows, cols, decoded.data(), e);
    });
    double worst = 0;
    for (size_t k = 0; k < values.size(); ++k)
      worst = std::max(worst, std::fabs(static_cast<double>(values[k] - decoded[k])));
    // Half a step of two bits over -7 to 7; of signs and of -1, 0 and 1, the mean magnitude, 3.73, rounded up.
    // Lists of vectors of fewer bits lose most of the least elements.
    const std::string_view name = f.name;
    const bool listed = name.starts_with("iq1") || name.starts_with("iq2");
    const bool two_or_three = name.starts_with("sign") || name.starts_with("ternary") || name.starts_with("tq") ||
                              name == "q1_0" || name == "q2_0";
    CHECK(worst <= (listed ? 5.0 : two_or_three ? 3.75 : 2.4));
    CHECK(decoded[0] < decoded[14]);
    if (f.block > 1)
      CHECK(failure([&](tw_error** e) {
              return tw_encode(f.name, nullptr, values.data(), 1, f.block + 1, to, e);
            }).field == "cols");
    CHECK(failure([&](tw_error** e) { return tw_encode(f.name, "none", values.data(), 1, cols, to, e); }).field ==
          "encoder");
    CHECK(failure([&](tw_error** e) { return tw_encode(f.name, nullptr, values.data(), -1, cols, to, e); }).field ==
          "rows");
    succeed([&](tw_error** e) { return tw_encode(f.name, nullptr, nullptr, 0, cols, {}, e); });
  }
  float factor = 0;
  CHECK(failure([&](tw_error** e) { return tw_global_for("nvfp4", -1, &factor, e); }).field == "amax");
}

TEST_CASE("weights are packed and unpacked on the host") {
  const ProblemHandle p = problem("gemm x=bf16 w=q4_0 y=bf16 m=1 n=64 k=128 pack=tiles");
  std::vector<float> values(64 * 128);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<int>(i * 31 % 17) - 8);
  std::vector<unsigned char> plain(64 * 128 / 32 * 18), back(plain.size());
  succeed([&](tw_error** e) {
    return tw_encode("q4_0", nullptr, values.data(), 64, 128, {plain.data(), nullptr, nullptr}, e);
  });
  int64_t data_bytes = 0, scale_bytes = 0;
  succeed([&](tw_error** e) { return tw_packed_bytes(p.get(), TW_DATA, &data_bytes, e); });
  succeed([&](tw_error** e) { return tw_packed_bytes(p.get(), TW_SCALES, &scale_bytes, e); });
  CHECK(data_bytes == 64 * 128 / 2);
  std::vector<unsigned char> data(static_cast<size_t>(data_bytes)), scales(static_cast<size_t>(scale_bytes));
  succeed([&](tw_error** e) {
    return tw_pack_weights(p.get(), {plain.data(), nullptr, nullptr}, {data.data(), scales.data(), nullptr}, e);
  });
  succeed([&](tw_error** e) {
    return tw_unpack_weights(p.get(), {data.data(), scales.data(), nullptr}, {back.data(), nullptr, nullptr}, e);
  });
  CHECK(back == plain);
  const ProblemHandle unpacked = problem("gemm x=bf16 w=q4_0 y=bf16 m=1 n=64 k=128");
  CHECK(failure([&](tw_error** e) {
          return tw_pack_weights(unpacked.get(), {plain.data(), nullptr, nullptr},
                                 {data.data(), scales.data(), nullptr}, e);
        }).status == TW_INVALID_ARGUMENT);
  const ProblemHandle cast = problem("cast x=f32 y=q8_1 rows=2 cols=64");
  CHECK(failure([&](tw_error** e) { return tw_packed_bytes(cast.get(), TW_DATA, &data_bytes, e); }).field == "gemm");
}

}  // namespace
}  // namespace tilewright::test
