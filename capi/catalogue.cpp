// SPDX-License-Identifier: Apache-2.0
// Formats, architectures and operations, and the version.
#include <cstdlib>

#include "capi/handles.h"

using namespace tilewright;
using namespace tilewright::capi;

namespace {

tw_format_info info_of(const FormatInfo& f) {
  tw_format_info info = TW_FORMAT_INFO_INIT;
  info.block = f.block;
  info.bits = f.bits;
  info.encoders = static_cast<std::int32_t>(f.encoders.size());
  for (std::int32_t& scope : info.stream_scope) scope = -1;
  for (const StreamSpec& s : f.streams) {
    const auto i = static_cast<std::size_t>(s.stream);
    info.stream_scope[i] = static_cast<std::int32_t>(s.scope);
    info.stream_bytes[i] = s.bytes;
    info.stream_rows[i] = s.rows;
  }
  info.layout_version = f.layout_version;
  info.name = f.name;
  info.title = f.title;
  info.source = f.source;
  return info;
}

}  // namespace

extern "C" {

uint32_t tw_abi_version(void) { return TW_ABI_VERSION; }
const char* tw_version(void) { return TILEWRIGHT_VERSION_STRING; }
void tw_free(void* text_or_bytes) { std::free(text_or_bytes); }

int32_t tw_format_count(void) { return static_cast<int32_t>(Format::all().size()); }

tw_status tw_format_at(int32_t index, tw_format_info* info, tw_error** error) {
  return guarded(error, [&] {
    write_struct(info, info_of(Format::all()[index_of(index, Format::all().size(), "index")].info()), "info");
  });
}

tw_status tw_format_find(const char* name, tw_format_info* info, tw_error** error) {
  return guarded(error, [&] { write_struct(info, info_of(Format::parse(text(name, "name")).info()), "info"); });
}

tw_status tw_format_encoder(const char* format, int32_t index, const char** name, tw_error** error) {
  return guarded(error, [&] {
    const auto encoders = Format::parse(text(format, "format")).info().encoders;
    required(name, "name") = encoders[index_of(index, encoders.size(), "index")];
  });
}

int32_t tw_arch_count(void) { return static_cast<int32_t>(archs().size()); }

tw_status tw_arch_at(int32_t index, tw_arch_info* info, tw_error** error) {
  return guarded(error, [&] {
    const Arch& a = archs()[index_of(index, archs().size(), "index")];
    write_struct(info, {0, a.major, a.minor, a.shared_per_block, a.name, a.run_on}, "info");
  });
}

int32_t tw_operation_count(void) { return static_cast<int32_t>(operations().size()); }

tw_status tw_operation_at(int32_t index, const char** name, const char** title, tw_error** error) {
  return guarded(error, [&] {
    const Operation& o = *operations()[index_of(index, operations().size(), "index")];
    // Operations return literals, which end with a zero byte.
    required(name, "name") = o.name().data();
    required(title, "title") = o.title().data();
  });
}

int32_t tw_operation_field_count(const char* name) {
  for (const Operation* o : operations()) {
    if (name && o->name() == name) return static_cast<int32_t>(o->fields().size());
  }
  return 0;
}

tw_status tw_operation_field(const char* name, int32_t index, tw_field_info* info, tw_error** error) {
  return guarded(error, [&] {
    static thread_local FieldInfo field;
    const std::vector<FieldInfo> fields = operation(text(name, "operation")).fields();
    field = fields[index_of(index, fields.size(), "index")];
    write_struct(info, {0, field.required, field.name.c_str(), field.value.c_str(), field.help.c_str()}, "info");
  });
}

}  // extern "C"
