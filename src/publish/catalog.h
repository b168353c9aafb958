// The contents of a publication: its parameters, how its ranks share them, and the addresses of
// each rank. Every rank has the same catalog, and a subscriber gets it when it connects. Decoders
// refuse every value that a catalog cannot have.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/socket.h"
#include "base/status.h"
#include "layout/layout.h"
#include "wire/bytes.h"
#include "wire/messages.h"

namespace fsccl::publish {

inline constexpr size_t kMostParams = size_t{1} << 20;
// Pieces of all ranks together: it bounds the time in which a subscriber looks through them.
inline constexpr uint64_t kMostPieces = uint64_t{1} << 30;
inline constexpr size_t kMostAddresses = 8;  // addresses that a rank has at most

struct Param {
  std::string name;                      // may be empty
  ParamShape shape;                      // tied_to is an index within the unit
  fsccl_dtype_t dtype = FSCCL_BFLOAT16;  // the type in which it is published
};

// The addresses at which a rank listens.
struct RankAddress {
  uint64_t host = 0;
  ListenerName listener = {};
  uint16_t port = 0;  // 0: no TCP
  std::vector<IpAddress> ips;
};
// Bytes of an encoded address, at most.
inline constexpr size_t kRankAddressBytes = 8 + 16 + 2 + 1 + 16 * kMostAddresses;
Bytes encode(const RankAddress& address);

struct Catalog {
  uint64_t number = 0;  // names the publication; follows from its key (key.h)
  fsccl_layout_t layout = FSCCL_LAYOUT_PER_PARAM;
  std::vector<Param> params;
  std::vector<uint32_t> unit_params;   // how many parameters each unit has
  std::vector<RankAddress> addresses;  // by rank

  int ranks() const { return static_cast<int>(addresses.size()); }
};
// Encodes all but the number and the addresses. The result must be the same on all ranks.
Bytes encode_params(const Catalog& catalog);
Bytes encode(const Catalog& catalog);
// Fails with FSCCL_ERR_LIMIT if the catalog is more than subscribers take.
Status check_size(const Catalog& catalog);
Result<Catalog> decode_catalog(ByteView payload);
Result<RankAddress> decode_rank_address(ByteView payload);

// Returns how the ranks share each unit. Fails with FSCCL_ERR_INVALID_ARGUMENT if shapes, ties or
// blocks are impossible, and with FSCCL_ERR_LIMIT if there are more than kMostPieces.
Result<std::vector<Layout>> layouts_of(const Catalog& catalog);

}  // namespace fsccl::publish
