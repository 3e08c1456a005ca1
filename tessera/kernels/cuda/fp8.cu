// Numbers of 8 bits of a matrix and of its transpose. Where the scales are of whole rows, a row is read once, and stays with
// its block. Else the matrix is read twice: once for the largest magnitudes, which every tile adds to, and once for codes.
#include <limits>

#include "tessera/kernels/cuda/fp8_numbers.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {
namespace {

constexpr int kEach = kVector;  // rows and columns of a thread
constexpr int kDown = 16, kAcross = 8, kTileRows = kDown * kEach, kTileColumns = kAcross * kEach;
constexpr int kTileThreads = kDown * kAcross;
// Threads next to each other whose lanes are in one warp, and the rows that they have of a tile.
constexpr int kGroup = 32, kGroupRows = kGroup / kAcross * kEach;

/// What a thread has of a matrix.
struct Place {
  int64_t first_row, first_column;  ///< of its block
  int down, across;
  int64_t row, column;
  bool inside;  ///< sizes are multiples of 16: all of its numbers or none
};

/// Tiles next to each other are those of a band of some rows, so that what is written of the transpose is near, too.
__device__ inline Place place_of(const Fp8CastArgs& args, unsigned tile) {
  constexpr unsigned kBand = 8;
  const auto across = static_cast<unsigned>((args.columns + kTileColumns - 1) / kTileColumns);
  const auto down = static_cast<unsigned>((args.rows + kTileRows - 1) / kTileRows);
  const unsigned first = tile / (kBand * across) * kBand, within = tile - first * across;
  const unsigned high = down - first < kBand ? down - first : kBand;
  Place place;
  place.first_row = static_cast<int64_t>(first + within % high) * kTileRows;
  place.first_column = static_cast<int64_t>(within / high) * kTileColumns;
  place.down = static_cast<int>(threadIdx.x) / kAcross;
  place.across = static_cast<int>(threadIdx.x) % kAcross;
  place.row = place.first_row + place.down * kEach;
  place.column = place.first_column + place.across * kEach;
  place.inside = place.row < args.rows && place.column < args.columns;
  return place;
}

template <int N, typename T>
__device__ void read_tile(const Fp8CastArgs& args, const Place& place, Eight<T> (&numbers)[kEach]) {
  const T* from = static_cast<const T*>(args.x) + place.row * args.columns + place.column;
#pragma unroll
  for (int r = 0; r < kEach; ++r) numbers[r] = eight_at<N>(from + r * args.columns);
}

/// The rectangle that a number lies in: divisions of 64 bits would take longer than all else.
__device__ inline int64_t rectangle_at(const Fp8Grid& grid, int64_t columns, int64_t row,
                                       int64_t column) {
  const auto wide = static_cast<uint32_t>(grid.wide), high = static_cast<uint32_t>(grid.high);
  const uint32_t across = static_cast<uint32_t>(columns) / wide;
  return static_cast<int64_t>(static_cast<uint32_t>(row) / high) * across +
         static_cast<uint32_t>(column) / wide;
}

// --- Largest magnitudes. They are not negative, so that their bits have their order.

__device__ inline void add_largest(const Fp8Grid& grid, int64_t index, uint32_t bits) {
  atomicMax(reinterpret_cast<unsigned*>(grid.amax) + index, bits);
}

/// Of 2 kCount values a thread keeps the half that the lane `kMask` away does not, combined with that lane's.
template <int kMask, int kCount>
__device__ void halve(uint32_t (&values)[kEach]) {
  const bool upper = (threadIdx.x & kMask) != 0;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const uint32_t low = values[k], high = values[k + kCount];
    values[k] = Larger{}(upper ? high : low, from_lane_xor(upper ? low : high, kMask));
  }
}

/// Rectangles one row high. `values`: of a thread's rows.
__device__ inline void add_rows(const Fp8CastArgs& args, const Fp8Grid& grid, const Place& place,
                                uint32_t (&values)[kEach]) {
  if (grid.wide % kTileColumns == 0 || grid.wide == args.columns) {  // has the tile's columns
    halve<4, 4>(values), halve<2, 2>(values), halve<1, 1>(values);
    const int64_t row = place.row + place.across;
    if (row >= args.rows) return;
    add_largest(grid, rectangle_at(grid, args.columns, row, place.first_column), values[0]);
  } else if (place.inside) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      add_largest(grid, rectangle_at(grid, args.columns, place.row + r, place.column), values[r]);
    }
  }
}

/// Rectangles one column wide.
__device__ inline void add_columns(const Fp8CastArgs& args, const Fp8Grid& grid, const Place& place,
                                   uint32_t (&values)[kEach]) {
  if (grid.high % kGroupRows == 0 || grid.high == args.rows) {  // has the group's rows
    halve<16, 4>(values), halve<8, 2>(values);
    const int64_t row = place.first_row + place.down / (kGroup / kAcross) * kGroupRows;
    const int64_t column = place.column + place.down % 4 / 2 * 4 + place.down % 2 * 2;
    if (row >= args.rows || column >= args.columns) return;
    const int64_t index = rectangle_at(grid, args.columns, row, column);
    add_largest(grid, index, values[0]), add_largest(grid, index + 1, values[1]);
  } else if (place.inside) {
    const int64_t index = rectangle_at(grid, args.columns, place.row, place.column);
#pragma unroll
    for (int k = 0; k < kEach; ++k) add_largest(grid, index + k, values[k]);
  }
}

/// Rectangles of 8 x 8 and more.
__device__ inline void add_rectangle(const Fp8CastArgs& args, const Fp8Grid& grid,
                                     const Place& place, uint32_t value) {
  const bool has_rows = grid.high % kTileRows == 0 || grid.high == args.rows;
  const bool has_columns = grid.wide % kTileColumns == 0 || grid.wide == args.columns;
  if (has_rows && has_columns) {
    value = over_block<Larger>(value);
    if (threadIdx.x > 0) return;
  } else if (!place.inside) {
    return;
  }
  add_largest(grid, rectangle_at(grid, args.columns, place.row, place.column), value);
}

template <typename T, int N>
__global__ void __launch_bounds__(kTileThreads) fp8_amax_kernel(Fp8CastArgs args) {
  const Place place = place_of(args, blockIdx.x);
  uint32_t of_rows[kEach] = {}, of_columns[kEach] = {};
  if (place.inside) {
    Eight<T> numbers[kEach];
    read_tile<N>(args, place, numbers);
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const uint32_t size = size_of(numbers[r].at(k));
        of_rows[r] = Larger{}(of_rows[r], size), of_columns[k] = Larger{}(of_columns[k], size);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    of_rows[k] = magnitude_of<T>(of_rows[k]), of_columns[k] = magnitude_of<T>(of_columns[k]);
  }
  if (args.grid.high > 1 && args.grid.wide > 1) {
    uint32_t largest = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) largest = Larger{}(largest, of_rows[k]);
    return add_rectangle(args, args.grid, place, largest);
  }
  if (args.grid.high == 1) {
    add_rows(args, args.grid, place, of_rows);
  } else {
    add_columns(args, args.grid, place, of_columns);
  }
  if (args.grid_of_transposed.amax != nullptr) {
    add_columns(args, args.grid_of_transposed, place, of_columns);
  }
}

// --- Scales.

/// The least scale as the bits of a float, among which a NaN with a sign is the least of all.
__device__ inline int bits_of_scale(float scale) {
  return scale == scale ? bits_as<int>(scale) : bits_as<int>(0xffc00000u);
}

struct Smaller {
  __device__ int operator()(int a, int b) const { return a < b ? a : b; }
};

__device__ inline void tell_seen(const Fp8CastArgs& args, uint32_t largest, int least) {
  if (args.largest != nullptr) atomicMax(reinterpret_cast<unsigned*>(args.largest), largest);
  if (args.least != nullptr) atomicMin(reinterpret_cast<int*>(args.least), least);
}

__device__ inline float keep_scale(const Fp8Grid& grid, int64_t index, float amax, float scale) {
  const bool finite = amax - amax == 0.0f;
  grid.scales[index] = scale;
  grid.factors[index] = finite ? 1 / scale : bits_as<float>(0x7fc00000u);
  return scale;
}

inline int64_t rectangles_of(const Fp8CastArgs& args, const Fp8Grid& grid) {
  return grid.amax == nullptr ? 0 : args.rows / grid.high * (args.columns / grid.wide);
}

/// `count`, `others`: rectangles of both grids.
__global__ void fp8_clear_kernel(Fp8CastArgs args, int64_t count, int64_t others) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x;
  if (i < count) args.grid.amax[i] = 0;
  if (i < others) args.grid_of_transposed.amax[i] = 0;
}

/// `own`: the scale, if it was `given`.
__global__ void fp8_scales_kernel(Fp8CastArgs args, int64_t count, int64_t others, bool given,
                                  float own) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x;
  const float largest = args.e5m2 ? kLargestNumber<true> : kLargestNumber<false>;
  uint32_t largest_seen = 0;
  int least_seen = static_cast<int>(kInfinityBits);
  if (i < count) {
    const float amax = args.grid.amax[i];
    const float scale =
        keep_scale(args.grid, i, amax, given ? own : scale_by(args.rule, largest, amax));
    largest_seen = bits_as<uint32_t>(amax);
    if (given || amax != 0) least_seen = bits_of_scale(scale);  // that of zeros is not told
  }
  if (i < others) {
    const float amax = args.grid_of_transposed.amax[i];
    keep_scale(args.grid_of_transposed, i, amax, scale_by(args.rule, largest, amax));
  }
  if (args.largest == nullptr && args.least == nullptr) return;
  largest_seen = over_block<Larger>(largest_seen), least_seen = over_block<Smaller>(least_seen);
  if (threadIdx.x == 0) tell_seen(args, largest_seen, least_seen);
}

// --- Codes of tiles.

/// What a thread's numbers are multiplied by: a row's times a column's. One of them is 1.
struct Scales {
  float down[kEach];
  Floats<kEach> across;
};

__device__ inline void read_scales(const Fp8CastArgs& args, const Fp8Grid& grid, const Place& place,
                                   Scales& to) {
  const float* from = grid.scales + rectangle_at(grid, args.columns, place.row, place.column);
  if (grid.high == 1) {
    const uint32_t step = static_cast<uint32_t>(args.columns) / static_cast<uint32_t>(grid.wide);
#pragma unroll
    for (int r = 0; r < kEach; ++r) to.down[r] = from[r * step];
  } else if (grid.wide == 1) {
    to.across = load<kEach>(from);
  } else {
    const float one = *from;
#pragma unroll
    for (int k = 0; k < kEach; ++k) to.across[k] = one;
  }
}

template <bool kE5M2, typename T>
__device__ EightCodes scaled_codes(const Eight<T>& numbers, float down,
                                   const Floats<kEach>& across) {
  Floats<kEach> scaled;
#pragma unroll
  for (int k = 0; k < kEach; ++k) scaled[k] = numbers[k] * (down * across[k]);
  return codes_of<kE5M2>(scaled);
}

/// The transpose goes through shared memory by eight codes of a column, in an order that meets different banks; threads next
/// to each other then write 128 bytes of a column. All of a block call it.
__device__ inline void write_transposed(const Fp8CastArgs& args, const Place& place,
                                        const EightCodes (&codes)[kEach]) {
  __shared__ EightCodes tile[kTileColumns][kDown];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    EightCodes of_column;
#pragma unroll
    for (int r = 0; r < kEach; ++r) of_column.v[r] = codes[r].v[k];
    tile[place.across * kEach + k][(place.down + 2 * place.across) % kDown] = of_column;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kTileColumns * kDown / kTileThreads; ++k) {
    const int i = k * kTileThreads + static_cast<int>(threadIdx.x), c = i / kDown, d = i % kDown;
    const int64_t row = place.first_row + d * kEach, column = place.first_column + c;
    if (row >= args.rows || column >= args.columns) continue;
    *reinterpret_cast<EightCodes*>(args.transposed + column * args.rows + row) =
        tile[c][(d + 2 * (c / kEach)) % kDown];
  }
}

/// A block has a tile of the matrix, a thread 8 x 8 numbers of it. kTwo: the transpose has scales of its own. `bound`: as
/// Lost has it. Tiles are taken from the last, which the kernel before has left in the cache.
template <typename T, bool kE5M2, int N, bool kTwo>
__global__ void __launch_bounds__(kTileThreads) fp8_cast_kernel(Fp8CastArgs args, float bound) {
  const Place place = place_of(args, gridDim.x - 1 - blockIdx.x);
  Lost lost;
  EightCodes codes[kEach] = {};  // the transpose's
  if (place.inside) {
    Eight<T> numbers[kEach];
    read_tile<N>(args, place, numbers);
    Floats<kEach> ones;
    Scales scales;
#pragma unroll
    for (int k = 0; k < kEach; ++k) ones[k] = scales.down[k] = scales.across[k] = 1;
    read_scales(args, args.grid, place, scales);
    if constexpr (kTwo) read_scales(args, args.grid_of_transposed, place, scales);
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const float down = scales.down[r];
      const auto plain = scaled_codes<kE5M2>(numbers[r], down, kTwo ? ones : scales.across);
      codes[r] = kTwo ? scaled_codes<kE5M2>(numbers[r], 1, scales.across) : plain;
      if (args.lost != nullptr) lost.add(numbers[r], plain, bound);
      if (args.plain == nullptr) continue;
      const int64_t to = (place.row + r) * args.columns + place.column;
      *reinterpret_cast<EightCodes*>(args.plain + to) = plain;
    }
  }
  if (args.lost != nullptr) lost.tell(args.lost);
  if (args.transposed != nullptr) write_transposed(args, place, codes);
}

// --- Codes of whole rows.

constexpr int kRowVectors = 4;  // of eight numbers, a thread's
constexpr int64_t kLongestRow = int64_t{kRowVectors} * kEach * kMaxThreads;

/// A block has a row, in registers.
template <typename T, bool kE5M2, int N>
__global__ void __launch_bounds__(kMaxThreads) fp8_row_kernel(Fp8CastArgs args) {
  const int64_t row = blockIdx.x, step = static_cast<int64_t>(blockDim.x) * kEach;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kEach;
  const T* from = static_cast<const T*>(args.x) + row * args.columns;
  Eight<T> numbers[kRowVectors];
#pragma unroll
  for (int i = 0; i < kRowVectors; ++i) {
    const int64_t column = first + i * step;
    if (column < args.columns) numbers[i] = eight_at<N>(from + column);
  }
  uint32_t size = 0;
#pragma unroll
  for (int i = 0; i < kRowVectors; ++i) {
    if (first + i * step >= args.columns) continue;
#pragma unroll
    for (int k = 0; k < kEach; ++k) size = Larger{}(size, size_of(numbers[i].at(k)));
  }
  const uint32_t bits = over_block<Larger>(magnitude_of<T>(size));
  const float amax = bits_as<float>(bits);
  const float scale = scale_by(args.rule, kLargestNumber<kE5M2>, amax);
  if (threadIdx.x == 0) {
    args.grid.amax[row] = amax;
    keep_scale(args.grid, row, amax, scale);
    tell_seen(args, bits, amax != 0 ? bits_of_scale(scale) : static_cast<int>(kInfinityBits));
  }
  Lost lost;
#pragma unroll
  for (int i = 0; i < kRowVectors; ++i) {
    const int64_t column = first + i * step;
    if (column >= args.columns) continue;
    Floats<kEach> scaled;
#pragma unroll
    for (int k = 0; k < kEach; ++k) scaled[k] = numbers[i][k] * scale;
    const auto codes = codes_of<kE5M2>(scaled);
    if (args.lost != nullptr) lost.add(numbers[i], codes, bits_as<float>(kInfinityBits));
    *reinterpret_cast<EightCodes*>(args.plain + row * args.columns + column) = codes;
  }
  if (args.lost != nullptr) lost.tell(args.lost);
}

/// Rows alone, which fit into registers.
bool is_of_rows(const Fp8CastArgs& args) {
  return args.grid.high == 1 && args.grid.wide == args.columns && args.columns <= kLongestRow &&
         args.scale == nullptr && args.transposed == nullptr;
}

template <typename T, bool kE5M2, int N>
void cast_as(const Fp8CastArgs& args, Stream stream) {
  if (is_of_rows(args)) {
    const int threads = threads_for(ceil_div(args.columns, kEach * kRowVectors), kMaxThreads);
    return launch(fp8_row_kernel<T, kE5M2, N>, args.rows, threads, stream, args);
  }
  const int64_t tiles = ceil_div(args.rows, kTileRows) * ceil_div(args.columns, kTileColumns);
  const int64_t count = rectangles_of(args, args.grid);
  const int64_t others = rectangles_of(args, args.grid_of_transposed);
  const int64_t blocks = blocks_for<1>(count > others ? count : others);
  const bool given = args.scale != nullptr;
  const float own = given ? *args.scale : 0.0f;
  const float bound = given ? kLargestNumber<kE5M2> / own : std::numeric_limits<float>::infinity();
  launch(fp8_clear_kernel, blocks, kFlatThreads, stream, args, count, others);
  launch(fp8_amax_kernel<T, N>, tiles, kTileThreads, stream, args);
  launch(fp8_scales_kernel, blocks, kFlatThreads, stream, args, count, others, given, own);
  const auto cast =
      others > 0 ? fp8_cast_kernel<T, kE5M2, N, true> : fp8_cast_kernel<T, kE5M2, N, false>;
  launch(cast, tiles, kTileThreads, stream, args, bound);
}

template <typename T>
void cast_from(const Fp8CastArgs& args, Stream stream) {
  with_width(aligned(args.x), [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    args.e5m2 ? cast_as<T, true, kWidth>(args, stream) : cast_as<T, false, kWidth>(args, stream);
  });
}

}  // namespace

void fp8_cast(const Fp8CastArgs& args, Stream stream) {
  with_type(args.type, [&](auto element) { cast_from<decltype(element)>(args, stream); });
}

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
