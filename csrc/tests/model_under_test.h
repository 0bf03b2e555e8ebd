// A model of one shard, whose pushes have one value each.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ps/model.h"

namespace dmlcomm::ps::tests {

constexpr double kNoRate = std::numeric_limits<double>::quiet_NaN();

inline ModelSpec spec_of(uint64_t count, Apply apply, Combine combine, const std::string& rule) {
  ModelSpec spec;
  spec.name = "m";
  spec.spaces = {{DType::f32, count, 0, DType::f32}};
  spec.apply = apply;
  spec.combine = combine;
  spec.rule = rule;
  return spec;
}

class ModelUnderTest {
 public:
  ModelUnderTest(ModelSpec spec, uint32_t num_workers, uint64_t checkpoint_every = 0,
                 uint64_t window_bytes = UINT64_MAX) {
    ModelOptions options;
    options.spec = std::move(spec);
    options.shards = {0};
    options.num_expected = num_workers;
    options.rule = std::move(make_rule(options.spec.rule, options.spec.options).value());
    options.checkpoint_every = checkpoint_every;
    options.window_bytes = window_bytes;
    model_ = std::make_unique<Model>(std::move(options), events_);
    const auto& pieces = model_->shard(0)->pieces();
    for (size_t i = 0; i < pieces.size(); ++i) {
      const std::vector<float> zeros(pieces[i].count);
      model_->set(0, i, reinterpret_cast<const std::byte*>(zeros.data()));
    }
    model_->seal();
  }

  Model& operator*() { return *model_; }
  Model* operator->() { return model_.get(); }

  // Every element of piece 0 of this push has `value`.
  bool push(uint32_t worker, uint64_t clock, float value, bool closes = false) {
    return push_as(worker, clock, ++sequence_, value, closes);
  }
  bool push_as(uint32_t worker, uint64_t clock, uint64_t sequence, float value,
               bool closes = false) {
    return push_piece(0, {worker, clock, sequence, 0, closes, kNoRate}, value);
  }
  bool push_piece(size_t piece, const Push& push, float value) {
    BufferPool::Buffer buffer = model_->take_buffer();
    std::fill_n(reinterpret_cast<float*>(buffer.get()), model_->shard(0)->pieces()[piece].count,
                value);
    return model_->push(0, piece, push, buffer).value();
  }
  // The value of all elements, or NaN while it has to wait.
  float pull(uint64_t needed) {
    std::vector<float> values(model_->shard(0)->pieces()[0].count);
    const std::byte* data = nullptr;
    auto* scratch = reinterpret_cast<std::byte*>(values.data());
    if (!model_->pull(0, 0, needed, false, scratch, &data).value()) return std::nanf("");
    for (float value : values) EXPECT_EQ(value, values[0]);
    return values[0];
  }

 private:
  EventCount events_;
  std::unique_ptr<Model> model_;
  uint64_t sequence_ = 0;
};

}  // namespace dmlcomm::ps::tests
