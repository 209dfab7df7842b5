// Loops in Go that wait, and loops that compute: see corpus.c.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
)

var flag int32
var mutex sync.Mutex
var sink any

func loadFlag() {
	for atomic.LoadInt32(&flag) == 0 {
	}
}

func tryLock() {
	mutex.Lock()
	for !mutex.TryLock() {
	}
}

func swap() {
	for !atomic.CompareAndSwapInt32(&flag, 1, 2) {
	}
}

//go:noinline
func isSet(at *int32) bool { return atomic.LoadInt32(at) != 0 }

func flagInFunction() {
	for !isSet(&flag) {
	}
}

func computeMap() {
	m := map[int]int{}
	for {
		for i := 0; i < 4096; i++ {
			m[i%512] += i
		}
	}
}

func computeSort() {
	values := make([]int, 4096)
	for {
		for i := range values {
			values[i] = i * 2654435761 % 10007
		}
		sort.Ints(values)
	}
}

func computeText() {
	for {
		var b strings.Builder
		for i := 0; i < 200; i++ {
			fmt.Fprintf(&b, "%d ", i)
		}
		sink = strings.Fields(b.String())
	}
}

func computeLocks() {
	for {
		mutex.Lock()
		flag++
		mutex.Unlock()
	}
}

func main() {
	// The samples are those of the first thread.
	runtime.LockOSThread()
	loops := map[string]func(){
		"loadFlag": loadFlag, "tryLock": tryLock, "swap": swap, "flagInFunction": flagInFunction,
		"computeMap": computeMap, "computeSort": computeSort, "computeText": computeText,
		"computeLocks": computeLocks,
	}
	fmt.Println("ready")
	loops[os.Args[1]]()
}
