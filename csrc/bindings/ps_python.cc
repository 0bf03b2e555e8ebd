#include "bindings/ps_python.h"

#include <map>
#include <utility>
#include <vector>

#include "base/str_cat.h"

namespace py = pybind11;

namespace dmlcomm::bindings {
namespace {

// An object that may be dropped by a thread without the interpreter's lock.
class SharedObject {
 public:
  explicit SharedObject(py::object object) : object_(std::move(object)) {}
  ~SharedObject() {
    const py::gil_scoped_acquire gil;
    object_ = py::object();
  }
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;
  const py::object& get() const { return object_; }

 private:
  py::object object_;
};

// Type and text, without the stack that what() adds.
std::string text_of(const py::error_already_set& error) {
  try {
    const py::object value = error.value();
    return str_cat(py::cast<std::string>(py::type::of(value).attr("__name__")), ": ",
                   py::cast<std::string>(py::str(value)));
  } catch (const std::exception&) {
    return error.what();
  }
}

class PythonRendezvous final : public transport::Rendezvous {
 public:
  PythonRendezvous(py::object set, py::object get) : set_(std::move(set)), get_(std::move(get)) {}

  Result<std::vector<std::string>> exchange(const std::string& name, int rank, int num_ranks,
                                            const std::string& value,
                                            std::chrono::milliseconds) override {
    std::vector<std::string> values;
    DMLCOMM_RETURN_IF_ERROR(call([&] {
      set_.get()(py::str(str_cat(name, "/", rank)), py::bytes(value));
      for (int peer = 0; peer < num_ranks; ++peer) {
        values.push_back(
            peer == rank ? value
                         : py::cast<std::string>(get_.get()(py::str(str_cat(name, "/", peer)))));
      }
    }));
    return values;
  }

 private:
  template <typename Body>
  static Status call(Body body) {
    const py::gil_scoped_acquire gil;
    try {
      body();
      return Status();
    } catch (const py::error_already_set& error) {
      return Status(StatusCode::io_error, "the rendezvous failed: ", text_of(error));
    } catch (const std::exception& error) {
      return Status(StatusCode::io_error, "the rendezvous failed: ", error.what());
    }
  }

  const SharedObject set_;
  const SharedObject get_;
};

// NumPy's name of a type, or null where it has none.
const char* numpy_name(DType dtype) {
  switch (dtype) {
    case DType::u8: return "uint8";
    case DType::i8: return "int8";
    case DType::u16: return "uint16";
    case DType::i16: return "int16";
    case DType::u32: return "uint32";
    case DType::i32: return "int32";
    case DType::u64: return "uint64";
    case DType::i64: return "int64";
    case DType::f32: return "float32";
    case DType::f64: return "float64";
    case DType::boolean: return "bool";
    default: return nullptr;
  }
}

class PythonRule final : public ps::Rule {
 public:
  explicit PythonRule(py::object function) : function_(std::move(function)) {
    for (const py::handle& name : py::getattr(function_.get(), "state_arrays", py::tuple())) {
      names_.push_back(py::cast<std::string>(name));
    }
  }
  ~PythonRule() override {
    const py::gil_scoped_acquire gil;
    states_.clear();
  }

  size_t num_slots() const override { return names_.size(); }
  double first_value(size_t) const override { return 0.0; }
  bool supports(DType dtype) const override { return numpy_name(dtype) != nullptr; }

  Status apply(const ps::UpdateRange& range) const override {
    const py::gil_scoped_acquire gil;
    try {
      const py::dtype dtype(numpy_name(range.dtype));
      const auto count = static_cast<py::ssize_t>(range.count);
      const py::array weights = view_of(range.weights, dtype, count);
      py::object gradient = py::array(dtype, {count}, {}, range.gradient);  // a copy
      if (range.scale != 1.0) {
        gradient = (gradient * py::float_(range.scale)).attr("astype")(dtype);
      }
      const py::dict state = state_of(range.weights);
      std::vector<py::array> slots;
      for (size_t slot = 0; slot < names_.size(); ++slot) {
        slots.push_back(view_of(range.slots[slot], dtype, count));
        state[names_[slot].c_str()] = slots.back();
      }
      function_.get()(weights, gradient, state, range.step);
      for (size_t slot = 0; slot < names_.size(); ++slot) {
        // What the function has put in the array's place.
        const py::object now = state[names_[slot].c_str()];
        if (!now.is(slots[slot])) slots[slot][py::slice(0, count, 1)] = now;
      }
      return Status();
    } catch (const std::exception& error) {
      return Status(StatusCode::invalid_argument, "the Python rule failed on ", range.count,
                    " elements: ", error.what());
    }
  }

 private:
  // The memory stays the shard's.
  static py::array view_of(std::byte* memory, const py::dtype& dtype, py::ssize_t count) {
    return py::array(dtype, {count}, {}, memory, py::capsule(memory, [](void*) {}));
  }

  // With the interpreter's lock, which guards it.
  py::dict state_of(const std::byte* weights) const {
    return states_.try_emplace(weights, py::dict()).first->second;
  }

  const SharedObject function_;
  std::vector<std::string> names_;                       // of slots
  mutable std::map<const std::byte*, py::dict> states_;  // by range
};

}  // namespace

std::shared_ptr<transport::Rendezvous> make_rendezvous(py::object set, py::object get) {
  return std::make_shared<PythonRendezvous>(std::move(set), std::move(get));
}

std::shared_ptr<const ps::Rule> make_python_rule(py::object function) {
  return std::make_shared<PythonRule>(std::move(function));
}

}  // namespace dmlcomm::bindings
