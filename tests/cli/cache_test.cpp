// SPDX-License-Identifier: Apache-2.0
// The cache commands, and what other commands do to the file of --cache.
#include <sqlite3.h>

#include <map>

#include "tool.h"

using namespace cli_tool;

namespace {

constexpr const char* kGemm = "\"gemm x=q8_1 w=q4_0 y=f32 m=4 n=384 k=1536\"";

void sql(const std::string& path, const std::string& text) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  CHECK(sqlite3_exec(db, text.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files[entry.path()] = slurp(entry.path());
  return files;
}

}  // namespace

TEST_CASE("cli: commands that look change nothing beside the file of --cache") {
  const fs::path folder = scratch() / "look";
  fs::create_directories(folder);
  ::chmod(folder.c_str(), 0700);
  const std::string cache = (folder / "cache.db").string(), flag = " --cache '" + cache + "' ";
  const std::string explain = std::string("cache explain --arch sm_90a ") + kGemm;
  const std::string plan = std::string("plan --arch sm_90a ") + kGemm,
                    emit = std::string("emit --arch sm_90a ") + kGemm;
  for (const std::string& command : {plan, emit, explain}) CHECK(tool(command + flag).code == 0);
  CHECK(fs::is_empty(folder));  // not even created
  std::ofstream(cache).flush();
  ::chmod(cache.c_str(), 0600);
  REQUIRE(tool("cache gc" + flag).code == 0);  // makes a cache of an empty file
  for (const bool wal : {true, false}) {
    sql(cache, wal ? "PRAGMA journal_mode=WAL" : "PRAGMA journal_mode=DELETE");
    for (const char* side : {"-journal", "-wal"}) {
      std::ofstream(cache + side) << "somebody else's";
      const auto before = contents(folder);
      const std::string out = scratch() / "look-out.db";
      for (const std::string& command : {plan, emit, explain, std::string("cache ls"), std::string("cache verify"),
                                         std::string("cache show 0"), "cache export '" + out + "'"}) {
        const Ran ran = tool(command + flag);
        INFO(command << " " << side << "\n" << ran.err);
        CHECK((contents(folder) == before));
        // A log that is nothing is replayed into the private copy; a journal is not ours to roll back.
        if (command == "cache ls") CHECK(ran.code == (side[1] == 'w' ? 0 : 1));
        if (command == "cache ls" && side[1] == 'j') CHECK(ran.err.find("-journal") != std::string::npos);
      }
      fs::remove(cache + side);
      fs::remove(out);
    }
  }
}
