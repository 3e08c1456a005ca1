#include "tessera/base/text.h"

#include <gtest/gtest.h>

#include "tessera/base/utf8.h"

namespace tessera {
namespace {

TEST(Text, WhatActsOnATerminalIsEscaped) {
  EXPECT_EQ(printable("plain, \xc3\xa9, \xe6\x97\xa5, \xf0\x9f\x99\x82"),
            "plain, \xc3\xa9, \xe6\x97\xa5, \xf0\x9f\x99\x82");
  EXPECT_EQ(printable("\x1b[2J\x07\r\n\t\x7f"), "\\x1b[2J\\x07\\x0d\\x0a\\x09\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b"
            "2J");  // CSI in one character
  EXPECT_EQ(printable("\xe2\x80\xae"
                      "gpj"),
            "\\xe2\\x80\\xae"
            "gpj");  // writes backwards
  EXPECT_EQ(printable("a\nb\tc\x1b", LineBreaks::kept), "a\nb\tc\\x1b");
}

TEST(Text, BytesThatAreNoUtf8AreEscapedAndFound) {
  for (const char* text :
       {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "a\x80"}) {
    EXPECT_FALSE(is_utf8(text)) << printable(text);
    EXPECT_TRUE(is_utf8(printable(text)));
  }
  EXPECT_EQ(printable("a\xff\xc3\xa9"), "a\\xff\xc3\xa9");
  EXPECT_TRUE(is_utf8("\xc3\xa9"));
  EXPECT_TRUE(is_utf8(""));
}

}  // namespace
}  // namespace tessera
