// The lpel benches with goroutines and channels. The work, arguments and output are those of the
// subjects in Rust (bench/src/lpel/load.rs describes each work).
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"math/bits"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	buffer   = 10
	capacity = 1024
	crowd    = 1000
	seed     = 0x636f726562656174
)

var (
	work         string
	count, depth uint64
	least        time.Duration
	lapsEnded    uint64
	lapsTime     time.Duration
	lapBegin     time.Time
	wrong        uint64
	isWrong      bool
)

func mix(state uint64) uint64 {
	z := state + 0x9e3779b97f4a7c15
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

func ordered(sum, item uint64) uint64   { return bits.RotateLeft64(sum, 5) ^ item }
func unordered(sum, item uint64) uint64 { return sum + mix(item) }
func counter(record uint64) uint64      { return record & 0xffffffff }

func record(number uint64) uint64 {
	if work == "leave" {
		return number<<32 | mix(seed+number)%depth
	}
	return number << 32
}

// The expected checksum of a lap.
func expected() (sum uint64) {
	for i := uint64(0); i < count; i++ {
		switch work {
		case "plain":
			sum = ordered(sum, record(i)+depth)
		case "leave":
			sum = unordered(sum, record(i))
		case "pingpong":
			sum = count
		case "stream":
			sum = ordered(sum, i)
		default:
			sum += i
		}
	}
	return
}

func operations() (n uint64) {
	switch work {
	case "plain":
		return count * depth
	case "leave":
		for i := uint64(0); i < count; i++ {
			n += counter(record(i)) + 1
		}
		return
	}
	return count
}

// Begins a lap, unless the measured time suffices, and returns whether a lap begins. The first lap
// warms up.
func lap() bool {
	more := lapsEnded < 2 || lapsTime < least
	lapBegin = time.Now()
	return more
}

func ended(checksum, want uint64) {
	if lapsEnded > 0 {
		lapsTime += time.Since(lapBegin)
	}
	lapsEnded++
	if checksum != want && !isWrong {
		wrong, isWrong = checksum, true
	}
}

func source(lap <-chan struct{}, to chan<- uint64) {
	for range lap {
		for i := uint64(0); i < count; i++ {
			to <- record(i)
		}
	}
}

func plain(want uint64) {
	laps := make(chan struct{}, 1)
	from := make(chan uint64, buffer)
	go source(laps, from)
	for i := uint64(0); i < depth; i++ {
		before, next := from, make(chan uint64, buffer)
		go func() {
			for record := range before {
				next <- record + 1
			}
		}()
		from = next
	}
	for lap() {
		laps <- struct{}{}
		sum := uint64(0)
		for i := uint64(0); i < count; i++ {
			sum = ordered(sum, <-from)
		}
		ended(sum, want)
	}
}

// All stages share one exit channel, which is the usual design with channels.
func leave(want uint64) {
	laps := make(chan struct{}, 1)
	from := make(chan uint64, buffer)
	out := make(chan uint64, buffer)
	go source(laps, from)
	for stage := uint64(0); stage < depth; stage++ {
		before, next := from, make(chan uint64, buffer)
		go func() {
			for record := range before {
				if counter(record) == 0 {
					out <- record + stage
				} else {
					next <- record - 1
				}
			}
		}()
		from = next
	}
	for lap() {
		laps <- struct{}{}
		sum := uint64(0)
		for i := uint64(0); i < count; i++ {
			sum = unordered(sum, <-out)
		}
		ended(sum, want)
	}
}

func pingpong(want uint64) {
	there, back := make(chan uint64, 1), make(chan uint64, 1)
	go func() {
		for n := range there {
			back <- n + 1
		}
	}()
	for lap() {
		n := uint64(0)
		for i := uint64(0); i < count; i++ {
			there <- n
			n = <-back
		}
		ended(n, want)
	}
}

func stream(want uint64) {
	ch := make(chan uint64, capacity)
	var stop atomic.Bool
	go func() {
		for !stop.Load() {
			for i := uint64(0); i < count; i++ {
				ch <- i
			}
		}
		close(ch)
	}()
	for lap() {
		sum := uint64(0)
		for i := uint64(0); i < count; i++ {
			sum = ordered(sum, <-ch)
		}
		ended(sum, want)
	}
	stop.Store(true)
	for range ch {
	}
}

// Goroutines have no handles to join, so each task stores its result in its own element.
func spawn(want uint64) {
	results := make([]uint64, crowd)
	var group sync.WaitGroup
	for lap() {
		sum := uint64(0)
		for begin := uint64(0); begin < count; begin += crowd {
			end := min(count, begin+crowd)
			group.Add(int(end - begin))
			for i := begin; i < end; i++ {
				go func() {
					results[i-begin] = i
					group.Done()
				}()
			}
			group.Wait()
			for _, result := range results[:end-begin] {
				sum += result
			}
		}
		ended(sum, want)
	}
}

// Bytes of the pages that this process has touched, and of the page tables, without garbage.
func residentBytes() (bytes uint64) {
	debug.FreeOSMemory()
	status, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(status), "\n") {
		words := strings.Fields(line)
		if len(words) > 1 && (words[0] == "VmRSS:" || words[0] == "VmPTE:") {
			kib, _ := strconv.ParseUint(words[1], 10, 64)
			bytes += kib * 1024
		}
	}
	return
}

// Returns the bytes per task, and the checksum.
func blocked() (float64, uint64) {
	before := residentBytes()
	var started atomic.Uint64
	streams, results := make([]chan uint64, count), make([]uint64, count)
	var group sync.WaitGroup
	group.Add(int(count))
	for i := range streams {
		from := make(chan uint64, 1)
		streams[i] = from
		go func() {
			started.Add(1)
			results[i] = <-from
			group.Done()
		}()
	}
	for started.Load() < count {
		runtime.Gosched()
	}
	after := residentBytes()
	if work == "idle" {
		fmt.Println("ready")
		io.Copy(io.Discard, bufio.NewReader(os.Stdin))
	}
	for i, to := range streams {
		to <- uint64(i)
	}
	group.Wait()
	sum := uint64(0)
	for _, result := range results {
		sum += result
	}
	return (float64(after) - float64(before)) / float64(count), sum
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "the first argument must be the work")
		os.Exit(2)
	}
	work = os.Args[1]
	flags := flag.NewFlagSet(work, flag.ExitOnError)
	workers := flags.Int("workers", 1, "")
	leastMs := flags.Int("least-ms", 0, "")
	flags.Uint64Var(&count, "count", 0, "")
	flags.Uint64Var(&depth, "depth", 0, "")
	flags.Parse(os.Args[2:])
	least = time.Duration(*leastMs) * time.Millisecond
	runtime.GOMAXPROCS(*workers)

	want := expected()
	works := map[string]func(uint64){
		"plain": plain, "leave": leave, "pingpong": pingpong, "stream": stream, "spawn": spawn,
	}
	if run := works[work]; run != nil {
		run(want)
		checksum := want
		if isWrong {
			checksum = wrong
		}
		value := float64(lapsTime.Nanoseconds()) / float64((lapsEnded-1)*operations())
		fmt.Printf("value %v checksum %016x\n", value, checksum)
		return
	}
	if work != "memory" && work != "idle" {
		fmt.Fprintln(os.Stderr, "this program does not support the work", work)
		os.Exit(2)
	}
	value, checksum := blocked()
	fmt.Printf("value %v checksum %016x\n", value, checksum)
}
