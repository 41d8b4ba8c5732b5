// SPDX-License-Identifier: Apache-2.0
// A plugin's life, as TensorRT calls it: created for a node, configured, stored in an engine, and created from it
// again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hosts/tensorrt/host/cases.h"
#include "hosts/tensorrt/host/standins.h"

namespace tilewright::tensorrt::host {

// Thrown where the plugin does what TensorRT would refuse, or refuses what it should take.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Engine {
  OwnedFields fields;         // what an engine stores
  std::size_t workspace = 0;  // bytes
  std::int32_t tactics = 0;
  std::string timing;
};
// As a file, for another machine. Throw Failure.
void write(const Engine& engine, const std::string& path);
Engine read(const std::string& path);

// `data`: of the weights. Throws Failure.
Engine build(const Library& library, Logger& logger, const Case& of, Filled& data);
// Constant weights that an engine stores must be those of `data`, in another order. Throws Failure.
void check_weights(Engine& engine, Filled& data);
// Throws Failure.
PluginHandle deserialized(const Library& library, Logger& logger, const Case& of, Engine& engine);

std::vector<nvinfer1::PluginTensorDesc> descriptions(const Case& of, std::int64_t varies);
Shape with(const Shape& shape, std::int64_t varies);

}  // namespace tilewright::tensorrt::host
