// A sparse matrix times dense rows. A block of columns of all rows is copied to memory that stays in the cache, where
// every row is read once for each neighbour; so the product may also be written over the rows. REAL is float or double.

#include <cstdint>
#include <cstring>

constexpr int BYTES = 128;  // of a row in a block: 8,000 rows stay in a cache of a megabyte
constexpr int COLUMNS = BYTES / sizeof(REAL);
#if defined(__AVX512F__)
constexpr int WIDTH = 64;
#else
constexpr int WIDTH = 32;
#endif
typedef REAL V __attribute__((vector_size(WIDTH)));
constexpr int VECTORS = BYTES / WIDTH;
constexpr int AHEAD = 2;  // blocks: the processor does not foresee what is read in a hundred rows at once

extern "C" int64_t bytes_of_row() { return BYTES; }

// `matrix` has its rows' ends, its columns and its weights. Source s has `rows[s]` rows, `strides[s]` numbers apart.
// One block of columns. Of a whole one the compiler knows the size, so that copies are not calls.
template <bool WHOLE>
static void multiply_block(const int64_t* ends, const int32_t* neighbours, const REAL* weights, int64_t results,
                           const REAL* const* sources, const int64_t* rows, const int64_t* strides, int64_t number,
                           REAL* into, int64_t stride, int64_t columns, V* block) {
    size_t bytes = WHOLE ? BYTES : columns * sizeof(REAL);
    V* to = block;
    for (int64_t s = 0; s < number; s++) {
        for (int64_t row = 0; row < rows[s]; row++, to += VECTORS) {
            const REAL* from = sources[s] + row * strides[s];
            memcpy(to, from, bytes);
            for (int byte = 0; byte < BYTES; byte += 64) __builtin_prefetch((const char*)(from + AHEAD * COLUMNS) + byte);
        }
    }
    for (int64_t row = 0, entry = 0; row < results; row++) {
        V sums[VECTORS] = {};
        for (; entry < ends[row]; entry++) {
            const V* from = block + VECTORS * neighbours[entry];
            for (int v = 0; v < VECTORS; v++) sums[v] += weights[entry] * from[v];
        }
        memcpy(into + row * stride, sums, bytes);
    }
}

// Row i of the matrix has the entries from ends[i - 1] to ends[i]. Source s has `rows[s]` rows, `strides[s]` numbers
// apart.
extern "C" void multiply(const int64_t* ends, const int32_t* neighbours, const REAL* weights, int64_t results,
                         const REAL** sources, const int64_t* rows, const int64_t* strides, int64_t number,
                         REAL* into, int64_t stride, int64_t columns, V* block) {
    while (columns > 0) {
        auto multiply = columns >= COLUMNS ? multiply_block<true> : multiply_block<false>;
        multiply(ends, neighbours, weights, results, sources, rows, strides, number, into, stride, columns, block);
        for (int64_t s = 0; s < number; s++) sources[s] += COLUMNS;
        into += COLUMNS;
        columns -= COLUMNS;
    }
}
