#include "publish/catalog.h"

#include "bootstrap/framed_socket.h"
#include "wire/frame.h"

namespace fsccl::publish {
namespace {

constexpr size_t kMostNameBytes = 4096;

void put(ByteWriter& writer, const Param& param) {
  writer.put(static_cast<uint16_t>(param.name.size()));
  writer.put_raw(param.name.data(), param.name.size());
  writer.put(static_cast<uint8_t>(param.dtype)).put(static_cast<int32_t>(param.shape.tied_to));
  writer.put(param.shape.block_rows).put(param.shape.block_columns);
  writer.put(static_cast<uint8_t>(param.shape.dims.size()));
  for (const int64_t dim : param.shape.dims) writer.put(dim);
}

Result<Param> get_param(ByteReader& reader) {
  Param param;
  const size_t bytes = reader.get<uint16_t>();
  if (bytes > kMostNameBytes) return bad_payload("Catalog");
  const ByteView name = reader.view(bytes);
  param.name.assign(name.begin(), name.end());
  const uint8_t dtype = reader.get<uint8_t>();
  param.shape.tied_to = reader.get<int32_t>();
  param.shape.block_rows = reader.get<uint64_t>();
  param.shape.block_columns = reader.get<uint64_t>();
  const size_t dims = reader.get<uint8_t>();
  if (!reader.good() || !dtype_valid(dtype) || dims > FSCCL_MAX_DIMS) return bad_payload("Catalog");
  param.dtype = static_cast<fsccl_dtype_t>(dtype);
  for (size_t i = 0; i < dims; i++) param.shape.dims.push_back(reader.get<int64_t>());
  return param;
}

void put(ByteWriter& writer, const RankAddress& address) {
  const size_t count = std::min(address.ips.size(), kMostAddresses);
  writer.put(address.host).put(address.listener).put(address.port).put(static_cast<uint8_t>(count));
  for (size_t i = 0; i < count; i++) writer.put(address.ips[i]);
}

Result<RankAddress> get_rank_address(ByteReader& reader) {
  RankAddress address;
  address.host = reader.get<uint64_t>();
  reader.get(address.listener);
  address.port = reader.get<uint16_t>();
  const size_t count = reader.get<uint8_t>();
  if (count > kMostAddresses) return bad_payload("Catalog");
  address.ips.resize(count);
  for (IpAddress& ip : address.ips) reader.get(ip);
  return address;
}

void put_params(ByteWriter& writer, const Catalog& catalog) {
  writer.put(static_cast<uint8_t>(catalog.layout));
  writer.put(static_cast<uint32_t>(catalog.unit_params.size()));
  for (const uint32_t count : catalog.unit_params) writer.put(count);
  writer.put(static_cast<uint32_t>(catalog.params.size()));
  for (const Param& param : catalog.params) put(writer, param);
}

}  // namespace

Bytes encode(const RankAddress& address) {
  ByteWriter writer;
  put(writer, address);
  return writer.take();
}

Bytes encode_params(const Catalog& catalog) {
  ByteWriter writer;
  put_params(writer, catalog);
  return writer.take();
}

Bytes encode(const Catalog& catalog) {
  ByteWriter writer;
  writer.put(catalog.number);
  put_params(writer, catalog);
  writer.put(static_cast<uint32_t>(catalog.addresses.size()));
  for (const RankAddress& address : catalog.addresses) put(writer, address);
  return writer.take();
}

Status check_size(const Catalog& catalog) {
  constexpr size_t kRest = 16;
  for (size_t i = 0; i < catalog.params.size(); i++)
    if (const size_t bytes = catalog.params[i].name.size(); bytes > kMostNameBytes)
      return fail(FSCCL_ERR_LIMIT, "parameter {}: its name has {} bytes: give one of at most {}", i,
                  bytes, kMostNameBytes);
  const size_t bytes =
      encode_params(catalog).size() + catalog.addresses.size() * kRankAddressBytes + kRest;
  if (bytes <= kMaxTableBytes) return success();
  return fail(FSCCL_ERR_LIMIT,
              "the names and shapes of {} parameters take {} bytes, and {} are the most that a "
              "subscriber takes: give shorter names, or publish in parts",
              catalog.params.size(), bytes, kMaxTableBytes);
}

Result<RankAddress> decode_rank_address(ByteView payload) {
  ByteReader reader(payload);
  FSCCL_ASSIGN(RankAddress address, get_rank_address(reader));
  if (!reader.good()) return bad_payload("RankAddress");
  return address;
}

Result<Catalog> decode_catalog(ByteView payload) {
  ByteReader reader(payload);
  Catalog catalog;
  catalog.number = reader.get<uint64_t>();
  const uint8_t layout = reader.get<uint8_t>();
  const size_t units = reader.get<uint32_t>();
  // Each unit, parameter and address takes bytes of the payload, and each loop stops when the
  // payload is at its end. A wrong count therefore takes no more memory than the payload justifies.
  if (layout > FSCCL_LAYOUT_RAGGED || units == 0 || units > kMostParams)
    return bad_payload("Catalog");
  catalog.layout = static_cast<fsccl_layout_t>(layout);
  size_t expected = 0;
  for (size_t i = 0; i < units && reader.good(); i++) {
    catalog.unit_params.push_back(reader.get<uint32_t>());
    expected += catalog.unit_params.back();
  }
  const size_t params = reader.get<uint32_t>();
  if (!reader.good() || params != expected || params == 0 || params > kMostParams)
    return bad_payload("Catalog");
  for (size_t i = 0; i < params; i++) {
    FSCCL_ASSIGN(Param param, get_param(reader));
    catalog.params.push_back(std::move(param));
  }
  const size_t ranks = reader.get<uint32_t>();
  if (!reader.good() || ranks == 0 || ranks > static_cast<size_t>(kMaxRanks))
    return bad_payload("Catalog");
  for (size_t i = 0; i < ranks && reader.good(); i++) {
    FSCCL_ASSIGN(RankAddress address, get_rank_address(reader));
    catalog.addresses.push_back(std::move(address));
  }
  if (!reader.finished()) return bad_payload("Catalog");
  return catalog;
}

Result<std::vector<Layout>> layouts_of(const Catalog& catalog) {
  // The words of all units are counted together, in 64 bits.
  constexpr uint64_t kMostElements = uint64_t{1} << 58;
  const uint64_t parts = uint64_t{catalog.params.size()} + catalog.unit_params.size();
  if (parts * catalog.addresses.size() > kMostPieces)
    return fail(FSCCL_ERR_LIMIT,
                "{} parameters and {} units on {} ranks are more than {} pieces together",
                catalog.params.size(), catalog.unit_params.size(), catalog.ranks(), kMostPieces);
  std::vector<Layout> layouts;
  uint64_t elements = 0;
  size_t first = 0;
  for (const uint32_t count : catalog.unit_params) {
    std::vector<ParamShape> shapes;
    for (size_t i = first; i < first + count; i++) shapes.push_back(catalog.params[i].shape);
    FSCCL_ASSIGN(Layout layout, Layout::make(catalog.layout, std::move(shapes), catalog.ranks()));
    elements += layout.total();
    if (elements > kMostElements)
      return fail(FSCCL_ERR_PROTOCOL, "a publication names more than {} elements", kMostElements);
    layouts.push_back(std::move(layout));
    first += count;
  }
  return layouts;
}

}  // namespace fsccl::publish
