// make_table: the kernels of the instruction set that the including file is compiled for. See
// elements.h for the rules.
#pragma once

#include "kernels/convert_loops.h"
#include "kernels/dispatch.h"
#include "kernels/loops.h"
#include "kernels/quantize_loops.h"
#include "kernels/update_loops.h"

namespace dmlcomm::kernels {
namespace {

template <typename Element, typename Op>
void reduce_with(void* dst, const void* const* srcs, size_t num_srcs, size_t count, uint64_t) {
  reduce_all<Element, Op>(dst, srcs, num_srcs, count, Keep{});
}

// Multiplying by the inverse of a power of two gives the same bits as dividing, several times
// faster.
template <typename Element>
void average(void* dst, const void* const* srcs, size_t num_srcs, size_t count, uint64_t divisor) {
  using Scalar = typename Element::Scalar;
  const auto number = static_cast<Scalar>(divisor);
  if ((divisor & (divisor - 1)) == 0) {
    reduce_all<Element, Sum>(dst, srcs, num_srcs, count, Multiply<Scalar>{1 / number});
  } else {
    reduce_all<Element, Sum>(dst, srcs, num_srcs, count, Divide<Scalar>{number});
  }
}

template <typename Unsigned, typename Integer, typename Wide>
void integer_average(void* dst, const void* const* srcs, size_t num_srcs, size_t count,
                     uint64_t divisor) {
  reduce_all<Single<Unsigned>, Sum>(dst, srcs, num_srcs, count,
                                    TruncatedDivide<Integer, Wide>{divisor});
}

template <typename Element>
void scale_with(void* dst, const void* src, size_t count, double factor) {
  using Scalar = typename Element::Scalar;
  const void* const srcs[] = {src};
  reduce_all<Element, Sum>(dst, srcs, 1, count, Multiply<Scalar>{static_cast<Scalar>(factor)});
}

// A complex number is two numbers to everything but a product.
template <ReduceFunction kParts>
void reduce_parts(void* dst, const void* const* srcs, size_t num_srcs, size_t count,
                  uint64_t divisor) {
  kParts(dst, srcs, num_srcs, 2 * count, divisor);
}

template <ScaleFunction kParts>
void scale_parts(void* dst, const void* src, size_t count, double factor) {
  kParts(dst, src, 2 * count, factor);
}

constexpr ReduceFunction& entry(KernelTable& table, DType dtype, ReduceOp op) {
  return table.reduce[static_cast<size_t>(dtype)][static_cast<size_t>(op)];
}

// Sum, product and the bitwise operators give the same bits for signed and unsigned numbers.
template <typename Unsigned, typename Integer, typename Wide>
constexpr void add_integer(KernelTable& table, DType dtype) {
  entry(table, dtype, ReduceOp::sum) = reduce_with<Plain<Unsigned>, Sum>;
  entry(table, dtype, ReduceOp::avg) = integer_average<Unsigned, Integer, Wide>;
  entry(table, dtype, ReduceOp::product) = reduce_with<Plain<Unsigned>, Product>;
  entry(table, dtype, ReduceOp::min) = reduce_with<Plain<Integer>, Min>;
  entry(table, dtype, ReduceOp::max) = reduce_with<Plain<Integer>, Max>;
  entry(table, dtype, ReduceOp::band) = reduce_with<Plain<Unsigned>, BitAnd>;
  entry(table, dtype, ReduceOp::bor) = reduce_with<Plain<Unsigned>, BitOr>;
  entry(table, dtype, ReduceOp::bxor) = reduce_with<Plain<Unsigned>, BitXor>;
}

template <typename Element>
constexpr void add_float(KernelTable& table, DType dtype) {
  entry(table, dtype, ReduceOp::sum) = reduce_with<Element, Sum>;
  entry(table, dtype, ReduceOp::avg) = average<Element>;
  entry(table, dtype, ReduceOp::product) = reduce_with<Element, Product>;
  entry(table, dtype, ReduceOp::min) = reduce_with<Element, Min>;
  entry(table, dtype, ReduceOp::max) = reduce_with<Element, Max>;
  table.scale[static_cast<size_t>(dtype)] = scale_with<Element>;
}

template <typename Element>
constexpr void add_conversions(KernelTable& table, DType dtype) {
  table.to_f32[static_cast<size_t>(dtype)] = convert_all<Plain<float>, Element>;
  table.from_f32[static_cast<size_t>(dtype)] = convert_all<Element, Plain<float>>;
}

template <typename Element>
constexpr void add_updates(KernelTable& table, DType dtype) {
  table.sgd[static_cast<size_t>(dtype)] = sgd_with<Element>;
  table.adam[static_cast<size_t>(dtype)] = adam_with<Element>;
  table.adagrad[static_cast<size_t>(dtype)] = adagrad_with<Element>;
}

template <typename Code>
constexpr void add_quantization(KernelTable& table, DType dtype) {
  table.quantize[static_cast<size_t>(dtype)] = quantize_all<Code>;
  table.dequantize[static_cast<size_t>(dtype)] = dequantize_all<Code>;
}

template <typename T>
constexpr void add_complex(KernelTable& table, DType dtype) {
  using Parts = Plain<T>;
  entry(table, dtype, ReduceOp::sum) = reduce_parts<reduce_with<Parts, Sum>>;
  entry(table, dtype, ReduceOp::avg) = reduce_parts<average<Parts>>;
  entry(table, dtype, ReduceOp::product) = reduce_with<Single<ComplexNumber<T>>, Product>;
  table.scale[static_cast<size_t>(dtype)] = scale_parts<scale_with<Parts>>;
}

// Sum and max are "or", product and min are "and". There is no average.
constexpr void add_boolean(KernelTable& table) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::bor}) {
    entry(table, DType::boolean, op) = reduce_with<Boolean, BitOr>;
  }
  for (const ReduceOp op : {ReduceOp::product, ReduceOp::min, ReduceOp::band}) {
    entry(table, DType::boolean, op) = reduce_with<Boolean, BitAnd>;
  }
  entry(table, DType::boolean, ReduceOp::bxor) = reduce_with<Boolean, BitXor>;
}

constexpr KernelTable make_table(const char* isa) {
  KernelTable table;
  table.isa = isa;
  add_integer<uint8_t, uint8_t, uint64_t>(table, DType::u8);
  add_integer<uint8_t, int8_t, int64_t>(table, DType::i8);
  add_integer<uint16_t, uint16_t, uint64_t>(table, DType::u16);
  add_integer<uint16_t, int16_t, int64_t>(table, DType::i16);
  add_integer<uint32_t, uint32_t, uint64_t>(table, DType::u32);
  add_integer<uint32_t, int32_t, int64_t>(table, DType::i32);
  add_integer<uint64_t, uint64_t, uint64_t>(table, DType::u64);
  add_integer<uint64_t, int64_t, int64_t>(table, DType::i64);
  add_float<Float16>(table, DType::f16);
  add_float<BFloat16>(table, DType::bf16);
  add_float<Plain<float>>(table, DType::f32);
  add_float<Plain<double>>(table, DType::f64);
  add_float<Float8E4M3>(table, DType::f8e4m3);
  add_float<Float8E5M2>(table, DType::f8e5m2);
  add_complex<float>(table, DType::c64);
  add_complex<double>(table, DType::c128);
  add_boolean(table);
  add_conversions<Float16>(table, DType::f16);
  add_conversions<BFloat16InOrder>(table, DType::bf16);
  table.add_scaled[static_cast<size_t>(DType::f16)] = add_scaled_with<Float16>;
  table.add_scaled[static_cast<size_t>(DType::bf16)] = add_scaled_with<BFloat16>;
  table.add_scaled[static_cast<size_t>(DType::f32)] = add_scaled_with<Plain<float>>;
  table.add_scaled[static_cast<size_t>(DType::f64)] = add_scaled_with<Plain<double>>;
  add_updates<Plain<float>>(table, DType::f32);
  add_updates<Plain<double>>(table, DType::f64);
  add_quantization<Int8Code>(table, DType::i8);
  add_quantization<Float8Code>(table, DType::f8e4m3);
  return table;
}

}  // namespace
}  // namespace dmlcomm::kernels
