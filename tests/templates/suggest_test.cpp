// SPDX-License-Identifier: Apache-2.0
// Tests what an unknown name is answered with.
#include "templates/common/suggest.h"

#include <tilewright/arch.h>
#include <tilewright/family.h>
#include <tilewright/operation.h>

#include <vector>

#include "support/catch.h"
#include "support/refusal.h"

using namespace tilewright;

TEST_CASE("the nearest name has few edits, and of several begins like what was written", "[suggest]") {
  const std::vector<std::string_view> names = {"k", "m", "sm_80", "sm_90a", "f16", "int8", "global"};
  CHECK(nearest("kk", names) == "k");
  CHECK(nearest("sm_90", names) == "sm_90a");
  CHECK(nearest("SM_80", names) == "sm_80");
  CHECK(nearest("int4", names) == "int8");
  CHECK(nearest("gobla", names) == "global");
  for (const char* far : {"", "z", "fp8", "float", "rows"}) CHECK(nearest(far, names).empty());
  CHECK(nearest(std::string(100000, 'k'), names).empty());
  CHECK(nearest("k", {}).empty());
  CHECK(one_of(std::vector<std::string_view>{"relu", "gelu"}, "Relu") ==
        "must be one of relu gelu; did you mean relu?");
}

TEST_CASE("an unknown target is answered with the one it means", "[suggest]") {
  const auto meant = [](const char* name) {
    const Error e = refusal([&] { (void)arch(name); });
    CHECK(e.code() == ErrorCode::invalid_argument);
    CHECK(e.field() == "arch");
    CHECK(e.value() == name);
    for (const Arch& a : archs()) CHECK((e.allowed() + " ").find(std::string(" ") + a.name) != std::string::npos);
    const std::size_t at = e.allowed().find("; did you mean ");
    return at == std::string::npos ? std::string() : e.allowed().substr(at + 15);
  };
  for (const char* name : {"sm_90", "sm90", "90", "90a", "SM_90A", "9.0", "compute_90a", "hopper", "Hopper", "H200"})
    CHECK(meant(name) == "sm_90a?");
  CHECK(meant("sm_100") == "sm_100a?");
  CHECK(meant("sm_120f") == "sm_120a?");
  CHECK(meant("86") == "sm_86?");
  CHECK(meant("RTX 4090") == "sm_89?");
  CHECK(meant("ssm_80") == "sm_80?");
  for (const char* name : {"", "cpu", "gfx90a", "99999999999", "native"}) CHECK(meant(name).empty());
}

TEST_CASE("operations, families and values of fields are suggested too", "[suggest]") {
  CHECK(refusal([] { (void)operation("gem"); }).allowed().ends_with("; did you mean gemm?"));
  CHECK(refusal([] { (void)family("gemm", "wgma"); }).allowed().ends_with("; did you mean wgmma?"));
  CHECK(refusal("gemm x=f16 w=f16 y=f16 m=1 n=8 k=8 act=rellu").allowed().find("did you mean relu?") !=
        std::string::npos);
  CHECK(refusal("gemm x=f16 w=f16 y=f16 m=1 n=8 kk=8").allowed().ends_with("; did you mean k?"));
}
