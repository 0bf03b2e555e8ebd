// str_cat: the text of its arguments, one after the other, for messages and logs.
//
// Takes strings, characters, bool ("true" or "false"), integers and floating-point numbers, and
// does not depend on the locale.
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>

namespace dmlcomm {

inline void append_text(std::string* out, std::string_view text) { out->append(text); }
inline void append_text(std::string* out, char character) { out->push_back(character); }

template <typename T>
  requires std::is_arithmetic_v<T> && (!std::same_as<T, char>)
void append_text(std::string* out, T number) {
  if constexpr (std::same_as<T, bool>) {
    out->append(number ? "true" : "false");
  } else {
    char digits[64];  // the longest double and the longest 64-bit integer need less than 32
    const char* const end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
    out->append(digits, static_cast<size_t>(end - digits));
  }
}

template <typename... Args>
std::string str_cat(const Args&... args) {
  std::string text;
  (append_text(&text, args), ...);
  return text;
}

}  // namespace dmlcomm
