// Quantization for the communication hooks: memory by address.
#include <pybind11/stl.h>

#include <cstdint>
#include <vector>

#include "bindings/bindings.h"
#include "kernels/quantize.h"

namespace py = pybind11;

namespace dmlcomm::bindings {
namespace {

DType codes_of(bool is_float) { return is_float ? DType::f8e4m3 : DType::i8; }

void quantize(uintptr_t dst, uintptr_t error, uintptr_t values, float factor,
              const std::vector<uintptr_t>& sources, size_t count, bool float_codes) {
  std::vector<const void*> pointers;
  for (const uintptr_t source : sources) pointers.push_back(reinterpret_cast<const void*>(source));
  const kernels::QuantizeInput input{reinterpret_cast<const void*>(values), factor, pointers.data(),
                                     pointers.size()};
  kernels::quantize(reinterpret_cast<void*>(dst), reinterpret_cast<void*>(error), input, count,
                    codes_of(float_codes));
}

void dequantize(uintptr_t dst, uintptr_t src, size_t count, bool float_codes) {
  kernels::dequantize(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), count,
                      codes_of(float_codes));
}

}  // namespace

void bind_quantize(py::module_& module) {
  module.attr("QUANTIZED_BLOCK") = kernels::kQuantizedBlock;
  module.def("quantized_bytes", &kernels::quantized_bytes, py::arg("count"),
             "What so many numbers take.");
  module.def(
      "quantize", &quantize, py::arg("dst"), py::arg("error"), py::arg("values"), py::arg("factor"),
      py::arg("sources"), py::arg("count"), py::arg("float_codes"),
      py::call_guard<py::gil_scoped_release>(),
      "factor x values + error + sources, by address; error 0: none. Codes are fp8 or int8.");
  module.def("dequantize", &dequantize, py::arg("dst"), py::arg("src"), py::arg("count"),
             py::arg("float_codes"), py::call_guard<py::gil_scoped_release>(),
             "The numbers of src in f32, by address.");
}

}  // namespace dmlcomm::bindings
