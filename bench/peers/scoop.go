// The benches of separate objects with Go's heap and collector. The objects, links, arguments and
// output are those of the subjects in Rust (bench/src/scoop/plan.rs). Arguments: work, objects,
// processors, collections; or "pause", objects, milliseconds.
package main

import (
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"runtime/debug"
	"sort"
	"strconv"
	"sync/atomic"
	"time"
)

type tree struct{ left, right *tree }
type ring struct{ next *ring }
type links struct{ to [10]*links }

// Returns a random number below n, which the parameter number determines.
func draw(number, n int) int {
	z := (uint64(number) + 1) * 0x9e3779b97f4a7c15
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	high, _ := bits.Mul64(z^(z>>31), uint64(n))
	return int(high)
}

func number(at int) int {
	n, err := strconv.Atoi(os.Args[at])
	if err != nil {
		panic(err)
	}
	return n
}

// Builds a tree of the objects from..to, and returns its first node.
func grow(from, to int) *tree {
	nodes := make([]*tree, to-from)
	for n := range nodes {
		nodes[n] = new(tree)
	}
	for n, node := range nodes {
		if 2*n+1 < len(nodes) {
			node.left = nodes[2*n+1]
		}
		if 2*n+2 < len(nodes) {
			node.right = nodes[2*n+2]
		}
	}
	return nodes[0]
}

func trees(objects, processors int) []*tree {
	roots := make([]*tree, processors)
	for p := range roots {
		// The objects i with i * processors / objects == p.
		roots[p] = grow((p*objects+processors-1)/processors, ((p+1)*objects+processors-1)/processors)
	}
	return roots
}

func main() {
	debug.SetGCPercent(-1)
	work := os.Args[1]
	objects := number(2)
	if work == "pause" {
		pause(objects, time.Duration(number(3))*time.Millisecond)
		return
	}
	processors, collections := number(3), number(4)
	var roots any
	switch work {
	case "trees":
		roots = trees(objects, processors)
	case "dead":
		roots = trees(objects, processors)[0]
		collections = 1
	case "ring", "shuffled":
		order := make([]int, objects)
		for i := range order {
			order[i] = i
		}
		if work == "shuffled" {
			for i := objects - 1; i > 0; i-- {
				j := draw(2<<40+i, i+1)
				order[i], order[j] = order[j], order[i]
			}
		}
		nodes := make([]*ring, objects)
		for i := range nodes {
			nodes[i] = new(ring)
		}
		for i := range order {
			nodes[order[i]].next = nodes[order[(i+1)%objects]]
		}
		roots = nodes[0]
	case "links":
		nodes := make([]*links, objects)
		for i := range nodes {
			nodes[i] = new(links)
		}
		for i, node := range nodes {
			for side := range node.to {
				node.to[side] = nodes[draw(1<<40+16*i+side, objects)]
			}
		}
		roots = nodes
	}
	times := make([]float64, collections)
	for i := range times {
		begin := time.Now()
		runtime.GC()
		times[i] = float64(time.Since(begin).Nanoseconds()) / 1e6
	}
	sort.Float64s(times)
	runtime.KeepAlive(roots)
	fmt.Printf("value %v\nchecksum %016x\n", times[len(times)/2], objects)
}

// Another goroutine measures for how long it was stopped while collections follow each other.
func pause(objects int, span time.Duration) {
	roots := trees(objects, 100)
	var over atomic.Bool
	gaps := make(chan []float64)
	go func() {
		// Only long gaps are kept, in memory that is allocated before the collections.
		kept := make([]float64, 0, 1<<16)
		last := time.Now()
		for !over.Load() {
			now := time.Now()
			if gap := now.Sub(last); gap > 10*time.Microsecond && len(kept) < cap(kept) {
				kept = append(kept, float64(gap.Nanoseconds())/1e3)
			}
			last = now
		}
		gaps <- kept
	}()
	for begin := time.Now(); time.Since(begin) < span; {
		runtime.GC()
	}
	over.Store(true)
	kept := append(<-gaps, 0)
	sort.Float64s(kept)
	runtime.KeepAlive(roots)
	fmt.Printf("value %v\nchecksum %016x\n", kept[len(kept)-1], objects)
}
