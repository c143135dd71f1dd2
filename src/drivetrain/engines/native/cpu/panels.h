// What the products in `float32.cpp` and `int8.cpp` have in common.
//
// With few rows, a product takes as long as reading its weight, so the weight lies in the order in which it is read: in
// panels of PANEL outputs, and in these by inputs. Each output is summed over the inputs in the same order, however
// many rows there are and whichever thread computes it: a row's result does not depend on its company.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
typedef float Lanes __attribute__((vector_size(64)));
typedef float Stored __attribute__((vector_size(64), aligned(4)));
constexpr int TALL = 8; // rows of a tile
constexpr int WIDE = 3; // vectors of a panel: with TALL rows, as many sums as leave registers for the rest
#else
typedef float Lanes __attribute__((vector_size(32)));
typedef float Stored __attribute__((vector_size(32), aligned(4)));
constexpr int TALL = 6;
constexpr int WIDE = 2;
#endif

constexpr int WIDTH = sizeof(Lanes) / sizeof(float);
constexpr int PANEL = WIDE * WIDTH;
constexpr int LONGEST = 240; // rows that are multiplied with a panel in turn

extern "C" int64_t drivetrain_panel() { return PANEL; }

static inline Lanes stored(const float *from, int vector) { return *(const Stored *)(from + vector * WIDTH); }

// One tile for each number of rows from 1 to TALL.
template <class Of> constexpr auto tiles_of(Of of) {
    return [&]<int... R>(std::integer_sequence<int, R...>) {
        return std::array{of.template operator()<R + 1>()...};
    }(std::make_integer_sequence<int, TALL>());
}

// Calls `tile` for `count` rows in equal groups, with the group's number, its first row, and the row after its last.
template <class Tile> static void in_tiles(int64_t count, const Tile &tile) {
    const int64_t tiles = (count + TALL - 1) / TALL;
    for (int64_t t = 0; t < tiles; t++) tile(t, t * count / tiles, (t + 1) * count / tiles);
}

// Calls `compute` with the place for a panel's outputs of `count` rows: a buffer if the panel is not full.
template <class Compute>
static void write_panel(float *out, int64_t outputs, int64_t panel, int64_t count, const Compute &compute) {
    const int64_t first = panel * PANEL, width = std::min<int64_t>(PANEL, outputs - first);
    if (width == PANEL) return compute(out + first, outputs);
    float aside[LONGEST][PANEL];
    compute(aside[0], PANEL);
    for (int64_t r = 0; r < count; r++) memcpy(out + r * outputs + first, aside[r], width * sizeof(float));
}

// All rows with all panels; every thread calls this. Calls `multiply` with a panel, the first row, the number of rows,
// and the panel that the thread takes next. What is `taken` begins with 0.
template <class Multiply>
static void share_out(int64_t rows, int64_t outputs, std::atomic<int64_t> &taken, const Multiply &multiply) {
    const int64_t panels = (outputs + PANEL - 1) / PANEL, parts = (rows + LONGEST - 1) / LONGEST;
    int64_t mine = taken++;
    while (mine < parts * panels) {
        const int64_t next = taken++, part = mine / panels, start = part * rows / parts;
        multiply(mine % panels, start, (part + 1) * rows / parts - start, next % panels);
        mine = next;
    }
}
