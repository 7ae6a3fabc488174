#include "core/remote/http/url.h"

#include "core/remote/http/http_rules.h"
#include "tests/remote/remote_support.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace stfs {
namespace {

using test::words;

std::string parsed(std::string_view text) {
  const auto url = parse_web_url(text);
  return url ? url->text() : "refused";
}

std::string resolved(std::string_view location) {
  const auto target = resolve_url(parse_web_url("https://host:8443/a/b/c?q").value(), location);
  return target ? target->text() : "refused";
}

using Rows = std::vector<std::pair<std::string, std::string>>;

// Each row is a name and the result that `function` returns for it.
void expect_each(const char* rule, const Rows& rows,
                 const std::function<std::string(const std::string&)>& function) {
  for (const auto& [name, expected] : rows) EXPECT_EQ(function(name), expected) << rule << name;
}

TEST(Url, RecognisesNamesWithScheme) {
  for (const std::string& name : words("a ./s3://b /a/b c:/d s3:/b ://b 1a://b")) {
    EXPECT_EQ(scheme_of(name), "") << name;
    EXPECT_FALSE(is_url(name)) << name;
  }
  EXPECT_FALSE(is_url(""));
  EXPECT_FALSE(is_url("a b://c"));
  EXPECT_EQ(scheme_of("HTTPS://host"), "https");
  EXPECT_EQ(scheme_of("S3://bucket/key"), "s3");
  EXPECT_TRUE(is_url("gopher+x://y"));
}

TEST(Url, PublicNameHasNoSecret) {
  expect_each("public name of ",
              {{"https://user:pass@host/a?X-Amz-Signature=1#f", "https://host/a"},
               {"https://user:p@ss@host/a@b", "https://host/a@b"},
               {"https://user:pa/ss@host/a", "https://host/a"},
               {"https://user:pa?ss@host/a", "https://host/a"},
               {"https:///good/a", "https:///good/a"},
               {"https://host?a@b", "https://host"},
               {"https://[::1]:80/a?b", "https://[::1]:80/a"},
               {"hf://org/name@main/file", "hf://org/name@main/file"},
               {"hf://gpt2@main", "hf://gpt2@main"},
               {"s3://key:secret@bucket/a?b#c", "s3://bucket/a?b#c"},
               {"a@b?c", "a@b?c"}},
              public_name);
}

TEST(Url, ReturnsParentsAndChildrenOfNames) {
  expect_each("parent of ",
              {{"/a/b", "/a"},
               {"https://host/a/b%20c?sig#x", "https://host/a?sig"},
               {"https://host/a", "https://host"},
               {"https://host", "https://host"},
               {"s3://bucket/a?b/c", "s3://bucket/a?b"}},
              parent_name);
  expect_each("last component of ",
              {{"/a/b", "b"},
               {"https://host/a/b%20c?sig/x", "b c"},
               {"https://host/a/b%2Fc", "b%2Fc"},
               {"https://host/a/b%00c", "b%00c"},
               {"https://host", ""},
               {"s3://bucket/a%20?b", "a%20?b"}},
              last_component);
  EXPECT_EQ(child_name("/a", "b/c"), "/a/b/c");
  EXPECT_EQ(child_name("https://host/a?sig", "b c%?.safetensors"),
            "https://host/a/b%20c%25%3F.safetensors?sig");
  EXPECT_EQ(child_name("https://host", "x"), "https://host/x");
  EXPECT_EQ(child_name("s3://bucket/a", "b c"), "s3://bucket/a/b c");
}

TEST(Url, RemovesSignatureButKeepsObjectParameters) {
  const std::string aws =
      "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=K%2F1&X-Amz-Date=2&"
      "X-Amz-Expires=3600&X-Amz-Security-Token=t&X-Amz-SignedHeaders=host";
  for (const auto& [query, kept] : std::vector<std::pair<std::string, std::string>>{
           {aws + "&X-Amz-Signature=0", ""},
           {aws + "&versionId=v&x-id=GetObject&X-Amz-Signature=0", "?versionId=v&x-id=GetObject"},
           {"response-content-type=a&X%2DAmz-Signature=0", "?response-content-type=a"},
           {"AWSAccessKeyId=k&Signature=s&Expires=1&partNumber=2", "?partNumber=2"},
           {"GoogleAccessId=k&Signature=s&Expires=1&generation=7", "?generation=7"},
           {"X-Goog-Signature=s&X-Goog-Date=1&generation=7", "?generation=7"},
           {"sv=2024&se=1&sr=b&sp=r&sig=s%3D&snapshot=2025", "?snapshot=2025"},
           {"Policy=p&Signature=s&Key-Pair-Id=k&a", "?a"},
           // These parameters are not a known signature.
           {"Signature=s&Expires=1", "?Signature=s&Expires=1"},
           {"sig=s&se=1", "?sig=s&se=1"},
           {"token=t&sv=1", "?token=t&sv=1"},
           {"X-Amz-Date=1", "?X-Amz-Date=1"},
           {"a=1&&b=2", "?a=1&&b=2"}}) {
    EXPECT_EQ(without_signature("https://h/p?" + query), "https://h/p" + kept);
  }
  for (const char* const name : {"https://h/p", "s3://b/k?X-Amz-Signature=1", "/p?sig=1&sv=2"}) {
    EXPECT_EQ(without_signature(name), name);
  }
}

TEST(Url, ParsesWebUrlsStrictly) {
  expect_each("parse ",
              {{"HTTPS://Host.Example:443", "https://host.example/"},
               {"http://host:8080/a/../b?c=/d?e#f", "http://host:8080/a/../b?c=/d?e"},
               {"https://[2001:DB8::1]:1/x", "https://[2001:db8::1]:1/x"},
               {"https://host:/x", "https://host/x"},
               {"https://host?x", "https://host/?x"},
               {"https://host/a b%20", "https://host/a%20b%20"},
               {"https://ho%73t/", "https://host/"},
               {"http://2130706433/", "http://127.0.0.1/"}},
              parsed);
  std::vector<std::string> all = words(
      "host /path ftp://host/ https:/host https:host https:// https://:80/ https://host:65536/ "
      "https://host:0/ https://host:-1/ https://host:80a/ https://host:99999999999999999999/ "
      "https://user@host/ https://user:pass@host/ https://ho%00st/ https://h\xC3\xB6st/ "
      "https://host\\@evil/ https://[::1/ https://[::1]x/ https://[fe80::1%25eth0]/ "
      "https:///good/a@evil/x http:///x http://%2541/ https://[127.0.0.1]/ https://[]/ "
      "https://host/\x1b[31m https://host/\x7f https://::1/");
  for (const char* const blank : {"", "https://ho st/", "https://host/a\nb", "https://ho\tst/"}) {
    all.emplace_back(blank);
  }
  all.emplace_back("https://host/\0x", 15);
  for (const std::string& bad : all) EXPECT_EQ(parsed(bad), "refused") << bad;
}

TEST(Url, OriginIsSchemeHostAndPort) {
  EXPECT_EQ(parse_web_url("https://Host/a")->origin(), "https://host:443");
  EXPECT_EQ(parse_web_url("http://[::1]/a")->origin(), "http://[::1]:80");
}

TEST(Url, RecognisesOnlyCertainLoopbackHosts) {
  for (const char* url :
       {"http://127.0.0.1/", "http://127.255.0.9/", "http://[::1]/", "http://localhost:80/",
        "http://LOCALHOST/", "http://127.1/", "http://2130706433/"}) {
    EXPECT_TRUE(parse_web_url(url)->is_loopback()) << url;
  }
  for (const char* url : {"http://localhost.example/", "http://128.0.0.1/", "http://[::2]/",
                          "http://127.0.0.1.example/"}) {
    EXPECT_FALSE(parse_web_url(url)->is_loopback()) << url;
  }
}

TEST(Url, ResolvesTargetAgainstBase) {
  expect_each("resolve ",
              {{"http://other/x", "http://other/x"},
               {"//other/x?y", "https://other/x?y"},
               {"/x/../y", "https://host:8443/y"},
               {"d", "https://host:8443/a/b/d"},
               {"?x", "https://host:8443/a/b/c?x"},
               {"../../../../d", "https://host:8443/d"},
               {"./d/.", "https://host:8443/a/b/d/"},
               {"..", "https://host:8443/a/"},
               {"..d/...e", "https://host:8443/a/b/..d/...e"},
               {"x y", "https://host:8443/a/b/x%20y"}},
              resolved);
  for (const std::string& bad :
       words("//user@other/x javascript:alert(1) file:///etc/passwd "
             "https:x https:// // https:///evil/x ///evil ftp://host/x //host:65536/")) {
    EXPECT_EQ(resolved(bad), "refused") << bad;
  }
  EXPECT_EQ(resolved("/x\ny"), "refused");
}

TEST(Url, PercentEncodingRoundTrips) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(percent_decode(percent_encode(all)), all);
  EXPECT_EQ(percent_encode("a/b c~", "/"), "a/b%20c~");
  EXPECT_EQ(percent_decode("%41%4"), "A%4");
  EXPECT_EQ(percent_decode("%zz%"), "%zz%");
}

TEST(HttpRules, ClassifyAddressesInAllForms) {
  for (const auto& [place, hosts] : std::vector<std::pair<AddressKind, std::string>>{
           {AddressKind::kLoopback,
            "127.0.0.1 127.1 2130706433 0x7f.1 0.0.0.0 :: ::1 ::ffff:127.0.0.1 ::ffff:7f00:1 "
            "64:ff9b::127.0.0.1 localhost a.localhost"},
           {AddressKind::kRoles,
            "169.254.169.254 169.254.43518 2852039166 fe80::1 febf::1 ::ffff:169.254.1.1 "
            "::169.254.1.1 fd00:ec2::254 100.100.100.200 1684301000 168.63.129.16 192.0.0.192 "
            "::ffff:100.100.100.200 64:ff9b::168.63.129.16 fd00:ec2::23"},
           {AddressKind::kPrivate,
            "10.0.0.0 10.255.255.255 10.1 172.16.0.1 172.31.255.255 192.168.0.1 100.64.0.0 "
            "100.127.255.255 192.0.0.1 ::ffff:10.0.0.1 64:ff9b::192.168.1.1 64:ff9b:1::1 fc00::1 "
            "fdff::1 fd00:ec3::254 fec0::1"},
           {AddressKind::kElsewhere,
            "128.0.0.1 126.255.255.255 169.253.1.1 169.255.0.0 100.63.255.255 100.128.0.0 "
            "172.15.255.255 172.32.0.0 192.167.255.255 192.169.0.0 11.0.0.0 1.0.0.0 168.63.129.17 "
            "2001:db8::1 fb00::1 fe00::1 host 169.254.169.254.example"}}) {
    for (const std::string& host : words(hosts)) EXPECT_EQ(place_of(host), place) << host;
  }
  EXPECT_EQ(place_of(std::string()), AddressKind::kElsewhere);
}

TEST(HttpRules, ClassifySocketAddressLikeText) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  ASSERT_EQ(::inet_pton(AF_INET6, "::ffff:169.254.169.254", &address.sin6_addr), 1);
  EXPECT_EQ(place_of(reinterpret_cast<const sockaddr&>(address)), AddressKind::kRoles);
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(place_of(reinterpret_cast<const sockaddr&>(v4)), AddressKind::kLoopback);
}

TEST(HttpRules, RejectRedirectToMoreInternalAddress) {
  constexpr AddressKind kPublic = AddressKind::kElsewhere, kPrivate = AddressKind::kPrivate;
  constexpr AddressKind kLoopback = AddressKind::kLoopback, kRoles = AddressKind::kRoles;
  const std::string roles = "redirects to a cloud metadata address";
  const std::string loopback = "redirects to a loopback address";
  const std::string inside = "redirects to a private address";
  struct Row {
    AddressKind by, to;
    std::string refusal;
  };
  for (const auto& [by, to, refusal] : std::vector<Row>{{kPublic, kPublic, ""},
                                                        {kPublic, kRoles, roles},
                                                        {kPrivate, kRoles, roles},
                                                        {kLoopback, kRoles, roles},
                                                        {kPublic, kLoopback, loopback},
                                                        {kPrivate, kLoopback, loopback},
                                                        {kLoopback, kLoopback, ""},
                                                        {kPublic, kPrivate, inside},
                                                        {kPrivate, kPrivate, ""},
                                                        {kLoopback, kPrivate, ""}}) {
    EXPECT_EQ(redirect_refusal(by, to), refusal)
        << static_cast<int>(by) << " " << static_cast<int>(to);
  }
}

TEST(HttpRules, CheckSchemeAndHostOfRedirect) {
  const auto refusal = [](const char* from, const char* to) {
    return redirect_refusal(*parse_web_url(from), *parse_web_url(to), AddressKind::kElsewhere);
  };
  EXPECT_EQ(refusal("https://a/", "https://b/"), "");
  EXPECT_EQ(refusal("http://a/", "https://b/"), "");
  EXPECT_EQ(refusal("https://a/", "http://a/"), "redirects from https to http");
  EXPECT_EQ(refusal("https://a/", "https://127.1/"), "redirects to a loopback address");
  EXPECT_EQ(refusal("https://a/", "https://[fd12::1]/"), "redirects to a private address");
  EXPECT_EQ(refusal("https://a/", "https://2852039166/"), "redirects to a cloud metadata address");
}

TEST(HttpRules, UseProxyExceptForNoProxyAndLoopback) {
  const HttpEnvironment environment{.http_proxy = "http://p:1",
                                    .https_proxy = "http://p:2",
                                    .no_proxy = "a.example, .B.example 10.0.0.0/9,[2001:db8::1]",
                                    .ca_file = {},
                                    .ca_directory = {},
                                    .netrc = {}};
  const auto proxy = [&](const char* url) { return environment.proxy_for(*parse_web_url(url)); };
  EXPECT_EQ(proxy("http://c.example/"), "http://p:1");
  EXPECT_EQ(proxy("https://c.example/"), "http://p:2");
  EXPECT_EQ(proxy("https://xa.example/"), "http://p:2");
  EXPECT_EQ(proxy("https://10.128.0.1/"), "http://p:2");
  for (const char* url :
       {"https://a.example/", "https://x.a.example/", "https://b.example/", "https://10.127.255.1/",
        "https://[2001:db8::1]/", "http://127.0.0.1/", "http://localhost/", "https://[::1]/"}) {
    EXPECT_EQ(proxy(url), "") << url;
  }
}

}  // namespace
}  // namespace stfs
