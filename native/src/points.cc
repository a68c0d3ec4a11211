// A tree of boxes over the points of each scene (k-d tree: Bentley, 1975), and searches in it.
//
// A box is left out where its nearest place is farther than what was found. Distances to boxes are
// computed like those to points, and rounding is monotone: no point is lost to it. Points that lie
// in one place are ordered by row, and boxes know their first row, so many of them cost no more.
#include "points.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace voxax {
namespace {

constexpr int64_t kLeaf = 16;    // points of the smallest boxes
constexpr int64_t kChunk = 128;  // queries at a time

struct Node {
  int64_t begin, end;  // of the points in the order of the tree
  int64_t right;       // the second half; the first follows. 0: there are no halves
  int32_t first_row;
};

template <typename T>
class Tree {
 public:
  Tree(const Cloud<T>& points, int64_t axes) : axes_(axes) {
    for (int64_t i = 0; i < points.count; ++i) {
      if (points.scene[i] >= 0) rows_.push_back(static_cast<int32_t>(i));
    }
    std::stable_sort(rows_.begin(), rows_.end(), [&](int32_t a, int32_t b) {
      return points.scene[a] < points.scene[b];
    });
    const auto count = static_cast<int64_t>(rows_.size());
    for (int64_t begin = 0, end = 0; begin < count; begin = end) {
      const int32_t scene = points.scene[rows_[begin]];
      while (end < count && points.scene[rows_[end]] == scene) ++end;
      scenes_.push_back(scene);
      roots_.push_back(static_cast<int64_t>(nodes_.size()));
      Build(points.positions, begin, end);
    }
    positions_.resize(count * axes);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(points.positions + rows_[i] * axes, axes, positions_.data() + i * axes);
    }
  }

  // The node of all points of a scene, or -1.
  int64_t RootOf(int32_t scene) const {
    const auto at = std::lower_bound(scenes_.begin(), scenes_.end(), scene);
    return at != scenes_.end() && *at == scene ? roots_[at - scenes_.begin()] : -1;
  }

  const Node& node(int64_t i) const { return nodes_[i]; }
  int32_t row(int64_t place) const { return rows_[place]; }

  T ToPoint(const T* query, int64_t place) const {
    T total = 0;
    for (int64_t a = 0; a < axes_; ++a) total += Square(query[a] - positions_[place * axes_ + a]);
    return total;
  }

  // Squared distances to the nearest and to the farthest place of a node's box.
  T ToBox(const T* query, int64_t i) const {
    const T* box = boxes_.data() + 2 * i * axes_;
    T total = 0;
    for (int64_t a = 0; a < axes_; ++a) {
      const T place = std::min(std::max(query[a], box[a]), box[axes_ + a]);
      total += Square(query[a] - place);
    }
    return total;
  }

  T Farthest(const T* query, int64_t i) const {
    const T* box = boxes_.data() + 2 * i * axes_;
    T total = 0;
    for (int64_t a = 0; a < axes_; ++a) {
      total += std::max(Square(query[a] - box[a]), Square(query[a] - box[axes_ + a]));
    }
    return total;
  }

 private:
  static T Square(T value) { return value * value; }

  void Build(const T* positions, int64_t begin, int64_t end) {
    const auto own = static_cast<int64_t>(nodes_.size());
    nodes_.push_back({begin, end, 0, *std::min_element(&rows_[begin], &rows_[begin] + (end - begin))});
    boxes_.resize(2 * (own + 1) * axes_);
    T* box = boxes_.data() + 2 * own * axes_;
    int64_t widest = 0;
    for (int64_t a = 0; a < axes_; ++a) {
      T low = positions[rows_[begin] * axes_ + a], high = low;
      for (int64_t i = begin + 1; i < end; ++i) {
        const T value = positions[rows_[i] * axes_ + a];
        low = std::min(low, value);
        high = std::max(high, value);
      }
      box[a] = low;
      box[axes_ + a] = high;
      if (high - low > box[axes_ + widest] - box[widest]) widest = a;
    }
    if (end - begin <= kLeaf) return;
    const int64_t middle = begin + (end - begin) / 2;
    const auto first = rows_.begin();
    std::nth_element(first + begin, first + middle, first + end, [&](int32_t a, int32_t b) {
      const T left = positions[a * axes_ + widest], right = positions[b * axes_ + widest];
      return left != right ? left < right : a < b;
    });
    Build(positions, begin, middle);
    nodes_[own].right = static_cast<int64_t>(nodes_.size());
    Build(positions, middle, end);
  }

  int64_t axes_;
  std::vector<Node> nodes_;
  std::vector<T> boxes_;      // lower, then upper corner of each node
  std::vector<T> positions_;  // in the order of the tree
  std::vector<int32_t> rows_;
  std::vector<int32_t> scenes_;  // ascending
  std::vector<int64_t> roots_;
};

template <typename T>
class Search {
 public:
  Search(const Tree<T>& tree, T radius, int64_t nearest)
      : tree_(tree), most_(radius * radius), nearest_(nearest) {}

  // The points around a query, counted in `found`, and listed in `rows`.
  void Run(const T* query, int64_t root, int32_t* rows, int32_t* found) {
    query_ = query;
    count_ = 0;
    best_.clear();
    if (root >= 0) Visit(root, tree_.ToBox(query, root));
    std::sort_heap(best_.begin(), best_.end());
    for (int64_t i = 0; i < nearest_; ++i) {
      rows[i] = i < static_cast<int64_t>(best_.size()) ? best_[i].row : -1;
    }
    *found = static_cast<int32_t>(count_);
  }

 private:
  struct Hit {
    T apart;
    int32_t row;
    bool operator<(const Hit& other) const {
      return apart != other.apart ? apart < other.apart : row < other.row;
    }
  };

  bool Full() const { return static_cast<int64_t>(best_.size()) == nearest_; }

  void Visit(int64_t i, T bound) {
    if (bound > most_) return;
    const Node& node = tree_.node(i);
    if (Full() && !(Hit{bound, node.first_row} < best_.front()) &&
        tree_.Farthest(query_, i) <= most_) {
      count_ += node.end - node.begin;
      return;
    }
    if (node.right == 0) {
      for (int64_t place = node.begin; place < node.end; ++place) {
        const T apart = tree_.ToPoint(query_, place);
        if (!(apart <= most_)) continue;
        ++count_;
        if (apart < std::numeric_limits<T>::infinity()) Offer({apart, tree_.row(place)});
      }
      return;
    }
    const T left = tree_.ToBox(query_, i + 1), right = tree_.ToBox(query_, node.right);
    if (right < left) {
      Visit(node.right, right);
      Visit(i + 1, left);
    } else {
      Visit(i + 1, left);
      Visit(node.right, right);
    }
  }

  void Offer(const Hit& hit) {
    if (!Full()) {
      best_.push_back(hit);
      std::push_heap(best_.begin(), best_.end());
    } else if (hit < best_.front()) {
      std::pop_heap(best_.begin(), best_.end());
      best_.back() = hit;
      std::push_heap(best_.begin(), best_.end());
    }
  }

  const Tree<T>& tree_;
  const T most_;
  const int64_t nearest_;
  const T* query_ = nullptr;
  int64_t count_ = 0;
  std::vector<Hit> best_;  // a heap, the farthest first
};

}  // namespace

template <typename T>
void SearchPoints(const PointSearch<T>& p, const Parallel& parallel) {
  const Tree<T> tree(p.points, p.axes);
  parallel.Run((p.queries.count + kChunk - 1) / kChunk, [&](int64_t chunk) {
    Search<T> search(tree, p.radius, p.nearest);
    const int64_t end = std::min(p.queries.count, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; ++i) {
      const int32_t scene = p.queries.scene[i];
      const int64_t root = scene < 0 ? -1 : tree.RootOf(scene);
      search.Run(p.queries.positions + i * p.axes, root, p.rows + i * p.nearest, p.found + i);
    }
  });
}

template void SearchPoints(const PointSearch<float>&, const Parallel&);
template void SearchPoints(const PointSearch<double>&, const Parallel&);

}  // namespace voxax
