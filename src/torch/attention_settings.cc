#include "torch/attention_settings.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "torch/row_view.h"

namespace tsallis {
namespace {

// One of two names; throws c10::ValueError.
template <typename Enum>
Enum OneOf(const char* argument, std::string_view name, Enum first, Enum second) {
  if (name == Name(first)) return first;
  TORCH_CHECK_VALUE(name == Name(second), argument, ": expected \"", Name(first), "\" or \"",
                    Name(second), "\", got \"", name, "\"");
  return second;
}

}  // namespace

const char* Name(Alignment alignment) { return alignment == Alignment::kEnd ? "end" : "start"; }

const char* Name(Padding padding) { return padding == Padding::kRight ? "right" : "left"; }

void FromName(std::string_view name, RowMap* map) { *map = RowMapFromName(name, AttentionMaps()); }

void FromName(std::string_view name, Alignment* alignment) {
  *alignment = OneOf("alignment", name, Alignment::kEnd, Alignment::kStart);
}

void FromName(std::string_view name, Padding* padding) {
  *padding = OneOf("padding", name, Padding::kRight, Padding::kLeft);
}

void CheckPositive(const char* argument, double number) {
  TORCH_CHECK_VALUE(std::isfinite(number) && number > 0.0, argument,
                    ": expected a finite number > 0 or None, got ", number);
}

std::string AttentionSettingsSchema() {
  const AttentionOptions defaults;
  std::string schema;
  ForEachSetting([&](const auto& setting) {
    using Kind = typename std::decay_t<decltype(setting)>::Kind;
    if (!schema.empty()) schema += ", ";
    schema += std::string(Kind::kSchema) + ' ' + setting.name + '=' +
              Kind::Default(setting.member(defaults));
  });
  return schema;
}

std::array<std::string, kGradientSettings> AttentionGradientNames() {
  std::array<std::string, kGradientSettings> names;
  std::size_t at = 0;
  ForEachSetting([&](const auto& setting) {
    if (std::decay_t<decltype(setting)>::Kind::kGradient) {
      names[at++] = std::string("d_") + setting.name;
    }
  });
  return names;
}

}  // namespace tsallis
