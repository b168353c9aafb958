#include "topo/hwloc_xml.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <regex>

#include "samples.h"
#include "topo/discover.h"

using namespace fsccl;
using namespace fsccl::topo;

namespace {

std::string text_of(const char* name) {
  std::ifstream file(std::string(TOPOLOGIES "/") + name);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Returns the error of load_file() for such a file, and "" if it accepts the file.
std::string xml_problem(const std::string& text) {
  const std::string path = testing::TempDir() + "machine.xml";
  std::ofstream(path) << text;
  const Result<Topology> read = load_file(path);
  return read.ok() ? "" : read.status().text();
}

// A machine of one package with one processor.
std::string machine(const std::string& inside) {
  const std::string sets =
      R"( cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1")";
  return "<?xml version=\"1.0\"?>\n<topology version=\"2.0\">\n<object type=\"Machine\"" + sets +
         ">" + inside + "<object type=\"PU\" os_index=\"0\"" + sets + "/></object></topology>\n";
}

TEST(HwlocXml, Hwloc1HangsObjectsBelowTheirMemory) {
  const std::string sets = R"( cpuset="0x3" complete_cpuset="0x3")";
  const Result<Topology> read = parse_xml(
      "<topology><object type='Machine'" + sets +
          "><info name='HostName' value='old &amp; &#65;'/>" +
          "<object type='NUMANode' os_index='1' local_memory='1024'" + sets +
          "><object type='Socket' os_index='0'" + sets +
          "><object type='Cache' depth='3' cache_size='64'" + sets + "><object type='Core'" + sets +
          "><object type='PU' os_index='0'" + sets + "/><object type='PU' os_index='1'" + sets +
          "/></object></object></object></object></object></topology>",
      "old");
  ASSERT_TRUE(read.ok()) << read.status().text();
  const Topology& old = read.value();
  EXPECT_EQ(old.vertices[0].name, "old & A");
  ASSERT_EQ(old.all(Kind::numa).size(), 1u);
  EXPECT_EQ(old.vertices[static_cast<size_t>(old.all(Kind::numa)[0])].bytes, 1024u);
  ASSERT_EQ(old.all(Kind::cache).size(), 1u);
  ASSERT_EQ(old.all(Kind::core).size(), 1u);
  EXPECT_EQ(old.vertices[static_cast<size_t>(old.all(Kind::core)[0])].cpus,
            (std::vector<int>{0, 1}));
  EXPECT_EQ(old.vertices[static_cast<size_t>(old.all(Kind::package)[0])].parent,
            old.all(Kind::numa)[0]);
}

TEST(HwlocXml, ErrorsSayWhereAndWhat) {
  EXPECT_EQ(xml_problem(machine("")), "");
  EXPECT_EQ(xml_problem(machine("<!-- a comment > --><distances2 type=\"NUMANode\"><indexes "
                                "length=\"3\">0 1 </indexes></distances2>")),
            "");
  const std::pair<std::string, const char*> kCases[] = {
      {"<topology/>", "line 1: there is no object of type Machine"},
      {"<topology version=\"2.0\">\n<object", "line 2: there must be a '>'"},
      {"<topology version=\"3.0\"/>", "version \"3.0\" is not known"},
      {"<other/>", "<other> stands where one <topology> must be"},
      {machine("") + machine(""), "stands where one <topology> must be"},
      {machine("<object/>"), "line 3: an object has no type"},
      {machine("<object type=\"Shelf\"/>"), "type \"Shelf\" of an object is not known"},
      {machine("<object type=\"Package\"/>"),
       "an object of type Package has no cpuset: the file is not complete"},
      {machine("<object type=\"Package\" cpuset=\"0x1\"/>"), "has no complete_cpuset"},
      {machine("<object type=\"Package\" cpuset=\"0x1\" complete_cpuset=\"0x1\"/>"),
       "has no nodeset"},
      {machine("<object type=\"Package\" cpuset=\"some\"/>"), "cpuset \"some\" is not a set"},
      {machine("<object type=\"PCIDev\" pci_type=\"gpu\"/>"), "pci_type \"gpu\""},
      {machine("<object type=\"PCIDev\" pci_link_speed=\"nan\"/>"),
       "pci_link_speed \"nan\" is not a number"},
      {machine("<object type=\"Bridge\" bridge_type=\"7\"/>"), "bridge_type \"7\""},
      {machine("<object type=\"OSDev\" osdev_type=\"x\"/>"), "osdev_type \"x\" is not a number"},
      {machine("<info name=\"a\"/>"), "an info has no name or no value"},
      {machine("<a b=\"1\" b=\"2\"/>"), "there are two b"},
      {machine("<a b=1/>"), "the value of b is not in quotes"},
      {machine("<a b=\"&unknown;\"/>"), "begins no character"},
      {machine("<a></b>"), "</b> ends nothing that is open"},
      {machine("<!-- "), "a comment does not end"},
  };
  for (const auto& [text, expected] : kCases)
    EXPECT_NE(xml_problem(text).find(expected), std::string::npos) << text << "\n"
                                                                   << xml_problem(text);
  std::string deep;
  for (int i = 0; i < 1000; i++) deep += "<a>";
  EXPECT_NE(xml_problem(machine(deep)).find("nested deeper than"), std::string::npos);
}

// Each attribute that hwloc writes for all objects is taken from one object. That is an error, and
// no crash.
TEST(HwlocXml, WithoutAnAttributeItIsNotComplete) {
  for (const char* name : {"two_memories.xml", "two_nvidia_gpus.xml", "virtual_machine.xml"}) {
    const std::string whole = text_of(name);
    ASSERT_EQ(xml_problem(whole), "") << name;
    for (const char* key : {"type", "cpuset", "complete_cpuset", "nodeset", "complete_nodeset"}) {
      const std::regex attribute(std::string("(<object[^>]*)\\s") + key + "=\"[^\"]*\"");
      const std::string without = std::regex_replace(whole, attribute, "$1");
      ASSERT_TRUE(without != whole) << key;
      EXPECT_NE(xml_problem(without), "") << name << " without " << key;
      const std::string once =
          std::regex_replace(whole, attribute, "$1", std::regex_constants::format_first_only);
      EXPECT_NE(xml_problem(once), "") << name << " with one object without " << key;
    }
  }
}

TEST(HwlocXml, AnyPartOfAFile) {
  std::mt19937 random(5);
  const std::string whole = text_of("two_nvidia_gpus.xml");
  for (int i = 0; i < 1500; i++) {
    std::string text = whole;
    for (int k = 0; k < 1 + i % 4; k++)
      text[random() % text.size()] = static_cast<char>(random() % 256);
    if (i % 3 == 0) text.erase(random() % text.size(), random() % 400);
    const Result<Topology> read = parse_xml(text, "file");
    EXPECT_TRUE(!read.ok() || !to_json(read.value()).empty());
  }
}

}  // namespace
