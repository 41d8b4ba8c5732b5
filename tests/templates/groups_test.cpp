// SPDX-License-Identifier: Apache-2.0
// Grouped gemms on the host: their fields, buffers and contract, what is offered for them, and the host's own
// computation.
#include <fmt/format.h>
#include <tilewright/arch.h>
#include <tilewright/error.h>
#include <tilewright/gemm.h>
#include <tilewright/operation.h>
#include <tilewright/pack.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "operations/gemm/params.cuh"
#include "support/catch.h"
#include "templates/operations/gemm/groups.h"

using namespace tilewright;

namespace {

const Arch& hopper() { return arch("sm_90a"); }

struct Buffers {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<std::byte>> spans;
  Buffers(const Task& task, std::uint64_t seed) {
    for (const Buffer& b : task.buffers) {
      bytes.emplace_back(b.bytes, std::byte{0xff});
      if (!b.output) b.fill(bytes.back(), seed);
    }
    for (std::vector<std::byte>& b : bytes) spans.emplace_back(b);
  }
};
Task task_of(const Problem& problem) {
  Task task;
  problem.operation().describe(problem, task);
  return task;
}
std::size_t slot(const Task& task, const std::string& name) {
  const auto named = [&](const Buffer& b) { return b.name == name; };
  return static_cast<std::size_t>(std::find_if(task.buffers.begin(), task.buffers.end(), named) - task.buffers.begin());
}
std::string refused(const std::string& fields) {
  try {
    Problem::parse("gemm x=f16 w=f16 y=f16 n=64 k=64 " + fields);
  } catch (const Error& e) {
    return e.field();
  }
  return "";
}

}  // namespace

TEST_CASE("groups: the text of a problem has them where they are not left out", "[groups]") {
  const std::string text = "gemm x=bf16 w=bf16 y=bf16 m=128 n=256 k=512 groups=8";
  const Problem problem = Problem::parse(text);
  CHECK(problem.text() == text);
  CHECK(problem.as<Gemm>()->group_layout == GroupLayout::contiguous);
  CHECK(problem.rows() == 128);
  CHECK(problem.ops() == 2.0 * 8 * 128 * 256 * 512);
  CHECK(problem.min_bytes() == 2.0 * 8 * (128 * 512 + 256 * 512 + 128 * 256));
  CHECK(Problem::parse(text + " group_layout=contiguous") == problem);
  CHECK(Problem::parse(text + " group_layout=masked").text() == text + " group_layout=masked");
  CHECK(Problem::parse("gemm x=bf16 w=bf16 y=bf16 m=128 n=256 k=512 groups=0").text().find("groups") ==
        std::string::npos);
}

TEST_CASE("groups: what a problem may not have is refused by name", "[groups]") {
  CHECK(refused("m=4 groups=1024") == "");
  CHECK(refused("m=4 groups=1025") == "groups");
  CHECK(refused("m=4 groups=-1") == "groups");
  CHECK(refused("m=4 group_layout=masked") == "group_layout");
  CHECK(refused("m=4 groups=2 c=f16") == "c");
  CHECK(refused("m=1073741824 groups=2") == "m");
  CHECK(refused("m=1073741823 groups=2") == "");
}

TEST_CASE("groups: weights are a stack in every stream, packed or not", "[groups]") {
  for (const char* formats : {"x=f16 w=q4_k", "x=bf16 w=nvfp4 global=mul", "x=e4m3_row w=int4_row"}) {
    const auto with = [&](const std::string& more) {
      return *Problem::parse(fmt::format("gemm {} y=f16 m=4 n=128 k=512 {}", formats, more)).as<Gemm>();
    };
    const Gemm plain = with("groups=3"), packed = with("groups=3 pack=tiles"), one = with("pack=tiles");
    std::vector<std::vector<std::byte>> from, to, apart;
    MutableOperand w, tiles;
    for (const StreamName s : kStreams) {
      CHECK(packed_bytes(packed, s) == 3 * packed_bytes(one, s));
      from.emplace_back(static_cast<std::size_t>(packed_bytes(plain, s)));
      to.emplace_back(static_cast<std::size_t>(packed_bytes(packed, s)));
      apart.emplace_back(static_cast<std::size_t>(packed_bytes(packed, s)));
      for (std::size_t i = 0; i < from.back().size(); ++i) from.back()[i] = static_cast<std::byte>(i * 7 + i / 251);
      w.set(s, from.back().data());
      tiles.set(s, to.back().data());
    }
    pack_weights(packed, w, tiles);
    for (int group = 0; group < 3; ++group) {
      MutableOperand of_w, of_tiles;
      for (std::size_t s = 0; s < 3; ++s) {
        of_w.set(kStreams[s], from[s].data() + from[s].size() / 3 * static_cast<std::size_t>(group));
        of_tiles.set(kStreams[s], apart[s].data() + apart[s].size() / 3 * static_cast<std::size_t>(group));
      }
      pack_weights(one, of_w, of_tiles);
    }
    CHECK(to == apart);
    // On a device a stack is packed as one tall matrix.
    const auto repack = operation("gemm").repack(Problem(packed));
    REQUIRE(repack);
    CHECK(repack->problem.as<Pack>()->n == 3 * 128);
    std::vector<std::vector<std::byte>> tall = to;
    for (auto& stream : tall) std::fill(stream.begin(), stream.end(), std::byte{0});
    MutableOperand tall_tiles;
    for (std::size_t s = 0; s < 2; ++s) tall_tiles.set(kStreams[s], tall[s].data());
    Gemm tall_gemm = one;
    tall_gemm.n = 3 * 128;
    MutableOperand no_global = w;
    no_global.global = nullptr;
    pack_weights(tall_gemm, no_global, tall_tiles);
    CHECK(tall[0] == to[0]);
    CHECK(tall[1] == to[1]);
    const std::vector<std::byte> bytes = repack->arguments(w, tiles);
    PackArgs args;
    std::memcpy(&args, bytes.data(), sizeof args);
    CHECK(args.w.global == nullptr);
  }
}

TEST_CASE("groups: buffers have the rows of all groups, and each stack's matrices differ", "[groups]") {
  for (const char* layout : {"contiguous", "masked"}) {
    const Problem problem = Problem::parse(fmt::format(
        "gemm x=e4m3_row w=nvfp4 y=bf16 m=100 n=128 k=256 global=mul bias=f32 groups=5 group_layout={}", layout));
    const Task task = task_of(problem);
    const bool masked = std::string(layout) == "masked";
    CHECK(task.weights < 0);
    const auto bytes = [&](const char* name) { return task.buffers[slot(task, name)].bytes; };
    CHECK(bytes("x.data") == 5 * 100 * 256);
    CHECK(bytes("x.scales") == 5 * 100 * 4);
    CHECK(bytes("w.data") == 5 * 128 * 256 / 2);
    CHECK(bytes("w.global") == 5 * 4);
    CHECK(bytes("bias.data") == 5 * 128 * 4);
    CHECK(bytes("y.data") == 5 * 100 * 128 * 2);
    CHECK(task.buffers[slot(task, "y.data")].row_bytes == 5 * 128 * 2);
    const Buffers buffers(task, 1);
    const std::vector<std::byte>& w = buffers.bytes[slot(task, "w.data")];
    CHECK(std::memcmp(w.data(), w.data() + w.size() / 5, w.size() / 5) != 0);

    std::vector<void*> pointers;
    for (std::size_t i = 0; i < task.buffers.size(); ++i) pointers.push_back(reinterpret_cast<void*>((i + 1) << 32));
    for (const std::int64_t rows : {100, 37, 1}) {
      const std::vector<std::byte> raw = task.arguments(pointers, rows);
      GemmArgs args;
      std::memcpy(&args, raw.data(), sizeof args);
      CHECK(args.m == (masked ? rows : 5 * rows));
      const std::int64_t at = args.group_rows - static_cast<const std::int32_t*>(pointers[slot(task, "group_rows")]);
      CHECK(at >= 0);
      CHECK(static_cast<std::size_t>(at + 5 + !masked) * 4 <= bytes("group_rows"));
    }
  }
}

TEST_CASE("groups: odd seeds divide rows evenly, even ones leave groups empty and rows alone", "[groups]") {
  for (const char* layout : {"contiguous", "masked"})
    for (const std::int64_t m : {1, 16, 300, 9000}) {
      const Gemm g =
          *Problem::parse(fmt::format("gemm x=f16 w=f16 y=f16 m={} n=64 k=64 groups=24 group_layout={}", m, layout))
               .as<Gemm>();
      const Buffer buffer = gemm::group_rows_buffer(g);
      std::vector<std::byte> even(buffer.bytes), skewed(buffer.bytes);
      buffer.fill(even, 1);
      buffer.fill(skewed, 2);
      for (const std::int64_t rows : std::set<std::int64_t>{m, (m + 1) / 2, 1}) {
        INFO(layout << " m " << m << " rows " << rows);
        const auto counts = [&](const std::vector<std::byte>& bytes) {
          std::vector<std::int64_t> count(25);  // the last: of no group
          for (const int owner : gemm::owners_of_rows(g, rows, bytes))
            ++count[owner < 0 ? 24 : static_cast<std::size_t>(owner)];
          return count;
        };
        if (rows == m || row_step(rows) < 64) {
          const std::vector<std::int64_t> count = counts(even);
          CHECK(std::count(count.begin(), count.end() - 1, rows) == 24);
          CHECK(count.back() == 0);
        }
        const std::vector<std::int64_t> count = counts(skewed);
        CHECK(std::count(count.begin(), count.end() - 1, 0) >= 2);
        CHECK(*std::max_element(count.begin(), count.end() - 1) >= rows);
        if (rows > 8) CHECK(count.back() > 0);
      }
    }
}

TEST_CASE("groups: the host computes and judges them, and names an offset that is not allowed", "[groups]") {
  for (const char* text : {"gemm x=bf16 w=bf16 y=bf16 m=9 n=48 k=64 bias=f32 act=silu groups=5",
                           "gemm x=f16 w=nvfp4 y=f32 m=9 n=64 k=64 global=div groups=5 group_layout=masked",
                           "gemm x=f16 w=q4_0 y=f16 m=9 n=64 k=64 pack=tiles groups=5"})
    for (const std::uint64_t seed : {1, 2}) {
      INFO(text << " seed " << seed);
      const Problem problem = Problem::parse(text);
      const Gemm& g = *problem.as<Gemm>();
      const Task task = task_of(problem);
      Buffers buffers(task, seed);
      const Operation& op = problem.operation();
      op.run_on_host(problem, task, buffers.spans);
      HostCheck check = op.check_on_host(problem, task, buffers.spans);
      CHECK(check.wrong == "");
      const std::vector<int> owners = gemm::owners_of_rows(g, g.m, buffers.bytes[slot(task, "group_rows")]);
      const auto computed = owners.size() - static_cast<std::size_t>(std::count(owners.begin(), owners.end(), -1));
      CHECK(check.checked == static_cast<std::int64_t>(computed) * g.n);
      CHECK(check.outputs == 45 * g.n);
      // Rows of no group stay as they were.
      const std::vector<std::byte>& y = buffers.bytes[slot(task, "y.data")];
      const std::size_t row_bytes = y.size() / owners.size();
      for (std::size_t r = 0; r < owners.size(); ++r)
        if (owners[r] < 0)
          CHECK(std::all_of(&y[r * row_bytes], &y[r * row_bytes] + row_bytes,
                            [](std::byte b) { return b == std::byte{0xff}; }));
      // Another group's weights give other results.
      std::vector<std::byte>& w = buffers.bytes[slot(task, "w.data")];
      std::rotate(w.begin(), w.begin() + static_cast<std::ptrdiff_t>(w.size() / 5), w.end());
      CHECK(op.check_on_host(problem, task, buffers.spans).wrong != "");

      std::vector<std::byte>& rows = buffers.bytes[slot(task, "group_rows")];
      const std::int32_t beyond = 1 << 20, below = -1;
      const std::size_t at = (static_cast<std::size_t>(gemm::group_rows_at(g, g.m)) + 3) * 4;
      for (const std::int32_t bad : {beyond, below}) {
        std::memcpy(&rows[at], &bad, 4);
        try {
          op.check_on_host(problem, task, buffers.spans);
          FAIL("not refused");
        } catch (const Error& e) {
          CHECK(e.code() == ErrorCode::invalid_argument);
          CHECK(e.field() == "group_rows[3]");
          CHECK(e.value() == std::to_string(bad));
        }
      }
    }
}

TEST_CASE("groups: a result is wrong where a row of no group was written", "[groups]") {
  const Problem problem = Problem::parse("gemm x=f16 w=f16 y=f16 m=40 n=16 k=16 groups=4");
  const Task task = task_of(problem);
  Buffers buffers(task, 2);
  std::vector<std::vector<std::byte>> inputs;
  for (std::size_t i = 0; i < task.buffers.size(); ++i)
    if (!task.buffers[i].output) inputs.push_back(buffers.bytes[i]);
  std::vector<std::byte> y = buffers.bytes[slot(task, "y.data")], oracle(160 * 16 * 8);
  std::fill(y.begin(), y.end(), std::byte{0});  // as the oracle's values and bounds
  CHECK(task.compare(y, oracle, inputs, 40) == "");
  y[0] = std::byte{1};
  CHECK(task.compare(y, oracle, inputs, 40) == "wrote y[0], a row of no group");
}

TEST_CASE("groups: families with one w do not serve them, and the others offer whole tiles", "[groups]") {
  for (const char* text : {"x=bf16 w=bf16 y=bf16", "x=e4m3_row w=e4m3_row y=bf16", "x=e4m3_g128 w=e4m3_b128 y=bf16",
                           "x=bf16 w=nvfp4 y=bf16 global=mul pack=tiles", "x=q8_1 w=q4_0 y=f32 pack=tiles"})
    for (const int groups : {1, 8, 256})
      for (const std::int64_t m : {0, 1, 7, 33, 64, 100, 2000}) {
        const Problem problem = Problem::parse(fmt::format("gemm {} m={} n=4096 k=4096 groups={}", text, m, groups));
        INFO(problem.text());
        for (const char* name : {"gemv", "mma", "wgmma_codes"})
          CHECK(family("gemm", name).candidates(problem, hopper()).empty());
        const std::vector<Candidate> offered = family("gemm", "wgmma").candidates(problem, hopper());
        CHECK(offered.size() >= 4);
        std::set<std::string> texts;
        for (const Candidate& c : offered) {
          CHECK(c.text().find("schedule") == std::string::npos);
          CHECK(c.at("block_m") > 1);
          CHECK(texts.insert(c.text()).second);
        }
        CHECK(family("gemm", "reference").candidates(problem, hopper()).size() == 1);
      }
}

TEST_CASE("groups: a launch's rows, blocks and tensor maps", "[groups]") {
  const auto source = [](const std::string& more) {
    const Problem p = Problem::parse("gemm x=bf16 w=bf16 y=bf16 m=128 n=512 k=512 " + more);
    return family("gemm", "wgmma").source(p, hopper(), family("gemm", "wgmma").candidates(p, hopper()).front());
  };
  const auto contract = [](const std::string& more) {
    const Problem p = Problem::parse("gemm x=bf16 w=bf16 y=bf16 m=128 n=512 k=512 " + more);
    return p.operation().contract(p);
  };
  CHECK(contract("").rows_per == 1);
  CHECK(contract("groups=6").rows_per == 6);
  CHECK(contract("groups=6 group_layout=masked").rows_per == 1);
  for (const char* layout : {"contiguous", "masked"}) {
    const std::string more = fmt::format("groups=6 group_layout={}", layout);
    const Source s = source(more);
    const std::size_t tokens = s.plan.maps[0].pointer == offsetof(GemmArgs, x) ? 0 : 1;
    CHECK(s.plan.maps[tokens].rows_at == offsetof(GemmArgs, m));
    CHECK(s.plan.maps[tokens].rows == (std::string(layout) == "masked" ? 6 : 0));
    CHECK(s.plan.maps[1 - tokens].rows_at == TensorMapPlan::kConstants + offsetof(tw::gemm::Shape, w_rows));
    tw::gemm::Shape shape;
    std::memcpy(&shape, contract(more).constants.data(), sizeof shape);
    CHECK(shape.groups == 6);
    CHECK(shape.w_rows == 6 * 512);
    CHECK(shape.w_data_step == 512 * 512 * 2);
  }
  // A table for 32 groups serves 6 as well as 30: one kernel.
  CHECK(source("groups=6").text == source("groups=30").text);
  CHECK(source("groups=6").plan == source("groups=30").plan);
  CHECK(source("groups=6").text != source("groups=33").text);
}
