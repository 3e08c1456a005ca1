#include "tessera/text/script.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/text/character_sets.h"
#include "tessera/text/pattern.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

// Scripts by their names in Unicode 14, those in common use first.
constexpr std::string_view kScripts =
    R"(Han Common Latin Inherited Cyrillic Greek Arabic Hebrew Devanagari Hangul Thai Armenian Georgian
Bengali Tamil Telugu Gujarati Gurmukhi Kannada Malayalam Sinhala Lao Tibetan Myanmar Ethiopic
Khmer Mongolian Hiragana Katakana Bopomofo Cherokee Canadian_Aboriginal Braille Syriac Thaana
Oriya Yi Coptic Gothic Runic Ogham Adlam Ahom Anatolian_Hieroglyphs Avestan Balinese Bamum
Bassa_Vah Batak Bhaiksuki Brahmi Buginese Buhid Carian Caucasian_Albanian Chakma Cham Chorasmian
Cuneiform Cypriot Cypro_Minoan Deseret Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs Elbasan
Elymaic Glagolitic Grantha Gunjala_Gondi Hanifi_Rohingya Hanunoo Hatran Imperial_Aramaic
Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kayah_Li Kharoshthi
Khitan_Small_Script Khojki Khudawadi Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian Mahajani
Makasar Mandaic Manichaean Marchen Masaram_Gondi Medefaidrin Meetei_Mayek Mende_Kikakui
Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mro Multani Nabataean Nandinagari New_Tai_Lue Newa
Nko Nushu Nyiakeng_Puachue_Hmong Ol_Chiki Old_Hungarian Old_Italic Old_North_Arabian Old_Permic
Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Osage Osmanya Pahawh_Hmong
Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Samaritan Saurashtra Sharada
Shavian Siddham SignWriting Sogdian Sora_Sompeng Soyombo Sundanese Syloti_Nagri Tagalog Tagbanwa
Tai_Le Tai_Tham Tai_Viet Takri Tangsa Tangut Tifinagh Tirhuta Toto Ugaritic Vai Vithkuqi Wancho
Warang_Citi Yezidi Zanabazar_Square)";

struct Script {
  std::string_view name;
  Pattern pattern;
};

const std::vector<Script>& scripts() {
  static const auto all = [] {
    std::vector<Script> made;
    for (auto left = kScripts; !left.empty();) {
      const auto name = left.substr(0, left.find_first_of(" \n"));
      made.push_back({name, Pattern("scripts", fmt::format("\\p{{sc:{}}}", name))});
      left.remove_prefix(std::min(name.size() + 1, left.size()));
    }
    return made;
  }();
  return all;
}

int find_script(char32_t code) {
  const auto text = utf8_of(code);
  for (size_t i = 0; i < scripts().size(); ++i) {
    if (scripts()[i].pattern.matches(text)) return static_cast<int>(i);
  }
  return kAnyScript;
}

}  // namespace

int script_of(char32_t code) {
  constexpr int kHan = 0;
  if (code == ' ' || !has_script(code)) return kAnyScript;
  if (code == 0x30FC) return kHan;
  thread_local std::unordered_map<char32_t, int> known;
  const auto found = known.find(code);
  if (found != known.end()) return found->second;
  int script = find_script(code);
  if (script != kAnyScript) {
    const auto name = scripts()[static_cast<size_t>(script)].name;
    if (name == "Hiragana" || name == "Katakana") script = kHan;
  }
  return known[code] = script;
}

}  // namespace tessera::text
