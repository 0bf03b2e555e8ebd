#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/ps_python.h"

namespace py = pybind11;

namespace dmlcomm::bindings {
namespace {

// By space: (address, elements) of each tensor.
using Addresses = std::vector<std::vector<std::pair<uintptr_t, uint64_t>>>;

TensorMemory to_memory(const Addresses& addresses) {
  TensorMemory memory;
  for (const auto& space : addresses) {
    auto& extents = memory.buffers.emplace_back();
    for (const auto& [address, elements] : space) {
      extents.push_back({reinterpret_cast<std::byte*>(address), elements});
    }
  }
  return memory;
}

Addresses to_addresses(const TensorMemory& memory) {
  Addresses addresses;
  for (const auto& extents : memory.buffers) {
    auto& space = addresses.emplace_back();
    for (const ps::Extent& extent : extents) {
      space.emplace_back(reinterpret_cast<uintptr_t>(extent.data), extent.elements);
    }
  }
  return addresses;
}

uintptr_t address_of(const py::array& array) { return reinterpret_cast<uintptr_t>(array.data()); }

// The arrays that a model consists of.
class ArrayModel {
 public:
  // NumPy's name of the element type, shape, number of the space.
  using Spec = std::tuple<std::string, std::vector<py::ssize_t>, size_t>;

  ArrayModel(const std::vector<Spec>& specs, size_t num_spaces) : num_spaces_(num_spaces) {
    for (const auto& [dtype, shape, space] : specs) {
      arrays_.push_back({py::dtype(dtype).num(), shape, space});
    }
  }

  // None where an array is of another kind, shape or type, or cannot be used where it is.
  std::optional<TensorMemory> memory_of(const py::list& leaves, bool writable) const {
    if (leaves.size() != arrays_.size()) return std::nullopt;
    TensorMemory memory;
    memory.buffers.resize(num_spaces_);
    for (size_t i = 0; i < arrays_.size(); ++i) {
      const py::handle leaf = leaves[i];
      if (!py::isinstance<py::array>(leaf)) return std::nullopt;
      const auto array = py::reinterpret_borrow<py::array>(leaf);
      if (!fits(array, arrays_[i], writable)) return std::nullopt;
      if (array.size() == 0) continue;
      memory.buffers[arrays_[i].space].push_back(
          {reinterpret_cast<std::byte*>(address_of(array)), static_cast<uint64_t>(array.size())});
    }
    return memory;
  }

 private:
  struct Array {
    int dtype;
    std::vector<py::ssize_t> shape;
    size_t space;
  };

  static bool fits(const py::array& array, const Array& expected, bool writable) {
    const py::dtype dtype = array.dtype();
    const bool native = dtype.byteorder() == '=' || dtype.byteorder() == '|';
    return dtype.num() == expected.dtype && native &&
           std::equal(array.shape(), array.shape() + array.ndim(), expected.shape.begin(),
                      expected.shape.end()) &&
           (array.flags() & py::array::c_style) != 0 && (!writable || array.writeable());
  }

  std::vector<Array> arrays_;
  const size_t num_spaces_;
};

}  // namespace

void bind_memory(py::module_& module) {
  module.def("address_of", &address_of,
             "Where an array's elements are: a tenth of the time that the attribute `ctypes` "
             "takes.");
  py::class_<TensorMemory>(module, "PsMemory", "What operations read or write.")
      .def(py::init(&to_memory), py::arg("addresses"))
      .def("addresses", &to_addresses,
           "By space of the model, (address, elements) of its tensors.");
  py::class_<ArrayModel>(module, "PsArrays", "The NumPy arrays that a model consists of.")
      .def(py::init<const std::vector<ArrayModel::Spec>&, size_t>(), py::arg("arrays"),
           py::arg("num_spaces"))
      .def("memory_of", &ArrayModel::memory_of, py::arg("arrays"), py::arg("writable"),
           "None unless all are arrays of these types and shapes that can be used in place.");
}

}  // namespace dmlcomm::bindings
