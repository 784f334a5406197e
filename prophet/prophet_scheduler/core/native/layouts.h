// Tensors of the simulated cluster under each cut, and the partitions as which they travel.
//
// Rule of this file: the tensors of each round, as data; simulator.h has the behaviour.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "simulation_spec.h"

namespace prophet {

struct Layout {
  std::vector<std::vector<uint32_t>> generates;  // by operation: tensors
  std::vector<std::vector<uint32_t>> needs;      // by operation: tensors of the previous iteration
  std::vector<uint32_t> needs_now;               // by operation: number of tensors of the same iteration
};

struct Partition {
  uint32_t tensor;
  uint32_t number;
  uint32_t bytes;
  uint32_t server;
};

class Layouts {
 public:
  Layouts(size_t operations, uint32_t partition_bytes, uint32_t servers)
      : operations_(operations), partition_bytes_(partition_bytes), servers_(servers) {}

  // Adds a cut of the same gradients: its tensors, and by operation the indices of those that it generates, each by one
  // operation. Returns the layout's number, counted from 0. Throws std::out_of_range for an invalid index.
  uint32_t add(const std::vector<TensorSpec>& tensors, const std::vector<std::vector<uint32_t>>& generates) {
    auto begin = static_cast<uint32_t>(tensors_.size());
    Layout layout;
    layout.generates.resize(operations_);
    layout.needs.resize(operations_);
    layout.needs_now.resize(operations_, 0);
    for (const TensorSpec& tensor : tensors) {
      auto number = static_cast<uint32_t>(tensors_.size());
      tensors_.push_back(tensor);
      if (tensor.id == kOwnPlace) tensors_.back().id = number - begin;
      for (uint32_t operation : tensor.needed_by) layout.needs.at(operation).push_back(number);
      for (uint32_t operation : tensor.needed_now) ++layout.needs_now.at(operation);
    }
    for (uint32_t o = 0; o < operations_; ++o) {
      for (uint32_t place : generates.at(o)) {
        tensors_.at(begin + place);
        layout.generates[o].push_back(begin + place);
      }
    }
    add_partitions(begin);
    layouts_.push_back(std::move(layout));
    return static_cast<uint32_t>(layouts_.size() - 1);
  }

  // Uses a layout from this round on.
  void use_from(uint32_t round, uint32_t number) {
    layouts_.at(number);
    while (!rounds_.empty() && rounds_.back().first >= round) rounds_.pop_back();
    rounds_.push_back({round, number});
  }

  const Layout& of_round(uint32_t round) const {
    auto it = rounds_.rbegin();
    while (it->first > round) ++it;
    return layouts_[it->second];
  }

  size_t tensors() const { return tensors_.size(); }
  size_t partitions() const { return partitions_.size(); }
  const TensorSpec& tensor(uint32_t t) const { return tensors_[t]; }
  const Partition& partition(uint32_t p) const { return partitions_[p]; }
  const TensorSpec& tensor_of(uint32_t p) const { return tensors_[partitions_[p].tensor]; }
  // A tensor's partitions end at the first partition of tensor t + 1.
  uint32_t first_partition(uint32_t t) const { return first_partition_[t]; }

 private:
  // Adds those of the tensors from `begin` on.
  void add_partitions(uint32_t begin) {
    auto first = static_cast<uint32_t>(partitions_.size());
    for (uint32_t t = begin; t < tensors_.size(); ++t) {
      if (first_partition_.size() == t) first_partition_.push_back(static_cast<uint32_t>(partitions_.size()));
      std::vector<uint32_t> parts = tensors_[t].parts;
      if (parts.empty()) {  // a tensor without bytes still gets one partition
        uint32_t left = tensors_[t].bytes;
        do {
          parts.push_back(std::min(left, partition_bytes_));
          left -= parts.back();
        } while (left > 0);
      }
      for (uint32_t number = 0; number < parts.size(); ++number) {
        // Distribute keys round-robin, so that each server gets about the same number of bytes.
        auto place = static_cast<uint32_t>(partitions_.size()) - first;
        partitions_.push_back(Partition{t, number, parts[number], servers_ ? place % servers_ : 0});
      }
      first_partition_.push_back(static_cast<uint32_t>(partitions_.size()));
    }
  }

  const size_t operations_;
  const uint32_t partition_bytes_, servers_;
  std::vector<Layout> layouts_;
  std::vector<std::pair<uint32_t, uint32_t>> rounds_;  // (first round, layout), by round
  std::vector<TensorSpec> tensors_;                    // of all layouts
  std::vector<Partition> partitions_;
  std::vector<uint32_t> first_partition_;  // by tensor, and one past the last
};

}  // namespace prophet
