// SPDX-License-Identifier: Apache-2.0
// What the host alone has to know of a format: where its weights may be stored, and how CPUs read them. A file
// formats/NAME.h beside formats/NAME.cuh specializes HostFormat; a format without one is as HostDefaults says. It is
// apart from the template, so that what CPUs need changes no text that a GPU's kernel is compiled from.
#pragma once

#include <tilewright/format.h>

namespace tilewright {

struct HostDefaults {
  static constexpr bool kGguf = false;                                 // FormatInfo::gguf
  static constexpr CheckpointForm kCheckpoint = CheckpointForm::none;  // FormatInfo::checkpoint
  using Panels = void;                                                 // cpu::Panels (backends/cpu/panel_format.h)
};

template <class F>
struct HostFormat : HostDefaults {};

}  // namespace tilewright
