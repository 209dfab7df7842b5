// An echo server for the benches of servers: a goroutine for each connection. Prints its port, and
// serves until its input ends. An argument is the CPU on which all its threads run.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

const bufferBytes = 1024

// Starts this program again, on one CPU: all threads of a program inherit the CPUs of its first
// thread.
func pin(argument string) {
	cpu, err := strconv.Atoi(argument)
	check(err)
	var mask [128]uint64
	mask[cpu/64] = 1 << (cpu % 64)
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(mask),
		uintptr(unsafe.Pointer(&mask)))
	if errno != 0 {
		check(errno)
	}
	program, err := os.Executable()
	check(err)
	check(syscall.Exec(program, []string{program}, os.Environ()))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(connection net.Conn) {
	defer connection.Close()
	buffer := make([]byte, bufferBytes)
	for {
		read, err := connection.Read(buffer)
		if err != nil {
			return
		}
		if _, err := connection.Write(buffer[:read]); err != nil {
			return
		}
	}
}

func main() {
	if len(os.Args) > 1 {
		pin(os.Args[1])
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go func() {
		for {
			connection, err := listener.Accept()
			check(err)
			go serve(connection)
		}
	}()
	fmt.Println("port", listener.Addr().(*net.TCPAddr).Port)
	io.Copy(io.Discard, os.Stdin)
}
