// The product of two matrices that lie in memory with any strides: C = A B, plus a number for each column, and ReLU.
//
// A block of C, ROWS by VECTORS vectors, is summed in registers. Columns of B are read as they lie where they lie side
// by side; else, and at the edge, they are packed first, DEPTH rows at a time, which stay in a core's own cache. Where A
// is smaller than a B that would be packed, the product is computed turned: B and A change places, and A is packed.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

namespace gossamer {

#ifdef __AVX512F__
constexpr int BYTES = 64, ROWS = 8;  // 24 sums in 32 registers
#else
constexpr int BYTES = 32, ROWS = 4;  // 12 in 16
#endif
constexpr int VECTORS = 3;
constexpr int64_t DEPTH = 800;

template <typename Real>
struct Product {
    typedef Real Vector __attribute__((vector_size(BYTES), aligned(alignof(Real)), may_alias));
    static constexpr int LANES = BYTES / sizeof(Real);

    int64_t rows, inner, columns;
    const Real* a;
    int64_t a_row, a_column;
    const Real* b;
    int64_t b_row, b_column;
    const Real* bias;  // null for none
    bool relu;
    Real* c;

    void multiply() const {
        if (b_column == 1 || rows >= columns) return multiply_straight();
        static thread_local std::vector<Real> memory;
        memory.resize((columns + LANES) * (rows + LANES));  // so much that all squares are whole
        Product{columns, inner, rows, b, b_column, b_row, a, a_column, a_row, nullptr, false, memory.data()}
            .multiply_straight();
        for (int64_t i = 0; i < rows; i += LANES)
            for (int64_t j = 0; j < columns; j += LANES) {
                const int64_t high = std::min<int64_t>(rows - i, LANES), wide = std::min<int64_t>(columns - j, LANES);
                alignas(BYTES) Real square[LANES][LANES];
                transpose(memory.data() + j * rows + i, rows, square[0], LANES);
                Vector more = {};
                if (bias) std::copy_n(bias + j, wide, (Real*)&more);
                for (int64_t h = 0; h < high; h++) {
                    const Vector value = at_least(*(const Vector*)square[h] + more, least(relu));
                    Real* into = c + (i + h) * columns + j;
                    if (wide == LANES)
                        *(Vector*)into = value;
                    else
                        std::copy_n((const Real*)&value, wide, into);
                }
            }
    }

    // ReLU leaves NaN what it is.
    static Vector at_least(Vector value, Vector least) { return value < least ? least : value; }
    static Vector least(bool relu) { return Vector{} - (relu ? 0 : std::numeric_limits<Real>::infinity()); }

    void multiply_straight() const {
        alignas(BYTES) static thread_local Real packed[DEPTH * VECTORS * LANES];
        // Without an inner dimension the sums are zero, and still written.
        const int64_t some_inner = std::max<int64_t>(inner, 1);
        const int64_t pieces = (some_inner + DEPTH - 1) / DEPTH, depth = (some_inner + pieces - 1) / pieces;
        for (int64_t j = 0, width; j < columns; j += width) {
            const int64_t left = (columns - j + LANES - 1) / LANES;
            const int vectors = left == VECTORS + 1 ? VECTORS - 1 : std::min<int64_t>(left, VECTORS);  // 4 is 2 + 2
            width = vectors * LANES;
            if (pieces == 1 && columns >= width) j = std::min(j, columns - width);  // some twice, and no edge
            const int64_t some = std::min(width, columns - j);
            const auto add = vectors == 1 ? &Product::panel<1> : vectors == 2 ? &Product::panel<2> : &Product::panel<3>;
            for (int64_t k = 0; k < some_inner; k += depth) {
                const int64_t deep = std::min(depth, inner - k);
                const Real* right = b + k * b_row + j * b_column;
                if (b_column == 1 && some == width) {
                    (this->*add)(j, some, k, deep, right, b_row);
                } else {
                    pack(right, deep, some, width, packed);
                    (this->*add)(j, some, k, deep, packed, width);
                }
            }
        }
    }

    // Some columns of B: `deep` rows of `width`, those beyond `some` zero.
    void pack(const Real* from, int64_t deep, int64_t some, int64_t width, Real* into) const {
        for (int64_t k = 0; k < deep; k += LANES)
            for (int64_t j = 0; j < width; j += LANES)
                if (b_row == 1 && k + LANES <= deep && j + LANES <= some)
                    transpose(from + k + j * b_column, b_column, into + k * width + j, width);
                else
                    for (int64_t t = k; t < std::min(k + LANES, deep); t++)
                        for (int64_t i = j; i < j + LANES; i++)
                            into[t * width + i] = i < some ? from[t * b_row + i * b_column] : 0;
    }

    // A square of LANES rows and columns: it is transposed by interleaving its halves, again and again. Not inlined: it
    // needs all registers.
    __attribute__((noinline)) static void transpose(const Real* from, int64_t from_row, Real* into, int64_t into_row) {
        typedef std::conditional_t<sizeof(Real) == 4, int32_t, int64_t> Place;
        typedef Place Places __attribute__((vector_size(BYTES)));
        Places low, high;
        for (int i = 0; i < LANES; i++) low[i] = i / 2 + i % 2 * LANES, high[i] = low[i] + LANES / 2;
        Vector now[LANES], next[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) now[i] = *(const Vector*)(from + i * from_row);
#pragma GCC unroll 4
        for (int times = 1; times < LANES; times *= 2) {
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                next[i] = __builtin_shuffle(now[i / 2], now[i / 2 + LANES / 2], i % 2 ? high : low);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) now[i] = next[i];
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) *(Vector*)(into + i * into_row) = now[i];
    }

    // Adds the products with rows k to k + deep of B to `some` columns of C, from column j on.
    template <int vectors>
    void panel(int64_t j, int64_t some, int64_t k, int64_t deep, const Real* right, int64_t step) const {
        int64_t i = 0;
        for (; i + ROWS <= rows; i += ROWS) block<ROWS, vectors>(i, j, some, k, deep, right, step);
        if (rows - i >= 4) block<4, vectors>(i, j, some, k, deep, right, step), i += 4;
        if (rows - i >= 2) block<2, vectors>(i, j, some, k, deep, right, step), i += 2;
        if (rows - i >= 1) block<1, vectors>(i, j, some, k, deep, right, step);
    }

    template <int height, int vectors>
    void block(int64_t i, int64_t j, int64_t some, int64_t k, int64_t deep, const Real* right, int64_t step) const {
        const Real* left = a + i * a_row + k * a_column;
        Vector sum[height][vectors] = {};
        for (int64_t t = 0; t < deep; t++) {
            Vector line[vectors];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) line[v] = *(const Vector*)(right + t * step + v * LANES);
#pragma GCC unroll 8
            for (int h = 0; h < height; h++) {
                const Real factor = left[h * a_row + t * a_column];
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++) sum[h][v] += factor * line[v];
            }
        }
        // What was there before, the bias or zeros are added. At the edge, beside C.
        static const Real zeros[VECTORS * LANES] = {};
        constexpr int width = vectors * LANES;
        alignas(BYTES) Real edge[height][width];
        Real* into = c + i * columns + j;
        const Real* to = k ? into : bias ? bias + j : zeros;
        const int64_t to_row = k ? columns : 0;
        const Vector most_negative = least(relu && k + deep == inner);
        if (some == width) return add<height, vectors>(sum, to, to_row, most_negative, into, columns);
        for (int h = 0; h < height; h++) std::copy_n(to + h * to_row, some, edge[h]);
        add<height, vectors>(sum, edge[0], width, most_negative, edge[0], width);
        for (int h = 0; h < height; h++) std::copy_n(edge[h], some, into + h * columns);
    }

    // Inlined, so that the sums stay in registers.
    template <int height, int vectors>
    __attribute__((always_inline)) static void add(const Vector (&sum)[height][vectors], const Real* to, int64_t to_row,
                                                   Vector least, Real* into, int64_t into_row) {
#pragma GCC unroll 8
        for (int h = 0; h < height; h++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                const Vector before = *(const Vector*)(to + h * to_row + v * LANES);
                *(Vector*)(into + h * into_row + v * LANES) = at_least(sum[h][v] + before, least);
            }
    }
};

}  // namespace gossamer

#define GOSSAMER_PRODUCT(NAME, REAL)                                                                             \
    extern "C" void NAME(                                                                                        \
        int64_t rows, int64_t inner, int64_t columns, const REAL* a, int64_t a_row, int64_t a_column,            \
        const REAL* b, int64_t b_row, int64_t b_column, const REAL* bias, bool relu, REAL* c) {                  \
        gossamer::Product<REAL>{rows, inner, columns, a, a_row, a_column, b, b_row, b_column, bias, relu, c}     \
            .multiply();                                                                                         \
    }
GOSSAMER_PRODUCT(gossamer_product_float, float)
GOSSAMER_PRODUCT(gossamer_product_double, double)
