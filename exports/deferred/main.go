// Command deferred keeps the dynamic loader from filling in the pointers of Go's data.
//
//	deferred LIBRARY
//
// Only the helper process runs Go, but the loader would write 21,000 pointers in every program that has the library: 0.3 ms and 0.9 MB of /bin/true
// on two cores with Linux 6.18. So their relocations go behind those that the loader is to apply, and section gp_deferred says where. The helper applies them (shim/helper.c).
package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: deferred LIBRARY")
		os.Exit(2)
	}
	if err := deferGo(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "deferred: %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func deferGo(path string) error {
	file, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := rewrite(file); err != nil {
		return err
	}
	return os.WriteFile(path, file, 0o644)
}

// rewrite changes a file of ELF with 64 bits: the order of its relocations, what the dynamic section says of them, and gp_deferred.
func rewrite(file []byte) error {
	read, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return err
	}
	relative := map[elf.Machine]uint32{elf.EM_X86_64: uint32(elf.R_X86_64_RELATIVE), elf.EM_AARCH64: uint32(elf.R_AARCH64_RELATIVE)}
	kind, known := relative[read.Machine]
	if !known {
		return fmt.Errorf("no relative relocation is known of %v", read.Machine)
	}
	section := map[string]*elf.Section{}
	for _, name := range []string{".rela.dyn", ".dynamic", "gp_go_data", "gp_deferred"} {
		if section[name] = read.Section(name); section[name] == nil || section[name].Type == elf.SHT_NOBITS {
			return fmt.Errorf("no section %s", name)
		}
	}
	contents := func(name string) []byte { return file[section[name].Offset:][:section[name].FileSize] }

	const bytesEach = 24 // Elf64_Rela: offset, type and symbol, addend
	goData := section["gp_go_data"]
	relocations := contents(".rela.dyn")
	var loaders, deferred []byte
	for len(relocations) >= bytesEach {
		one := relocations[:bytesEach]
		offset, info := read.ByteOrder.Uint64(one), read.ByteOrder.Uint64(one[8:])
		if uint32(info) == kind && offset-goData.Addr < goData.Size {
			deferred = append(deferred, one...)
		} else {
			loaders = append(loaders, one...)
		}
		relocations = relocations[bytesEach:]
	}
	if len(deferred) == 0 {
		return errors.New("gp_go_data has no relative relocations")
	}

	less := map[elf.DynTag]uint64{elf.DT_RELASZ: uint64(len(deferred)), elf.DT_RELACOUNT: uint64(len(deferred) / bytesEach)}
	for dynamic := contents(".dynamic"); len(dynamic) >= 16; dynamic = dynamic[16:] {
		tag := elf.DynTag(read.ByteOrder.Uint64(dynamic))
		now := read.ByteOrder.Uint64(dynamic[8:])
		if less[tag] > now {
			return fmt.Errorf("%v is %d, with %d to take from it", tag, now, less[tag])
		}
		read.ByteOrder.PutUint64(dynamic[8:], now-less[tag])
		delete(less, tag)
	}
	if len(less) > 0 {
		return fmt.Errorf("the dynamic section lacks %v", less)
	}
	at := contents("gp_deferred")
	if len(at) != 16 {
		return fmt.Errorf("gp_deferred has %d bytes, not 16", len(at))
	}
	read.ByteOrder.PutUint64(at, section[".rela.dyn"].Addr+uint64(len(loaders)))
	read.ByteOrder.PutUint64(at[8:], uint64(len(deferred)/bytesEach))
	copy(contents(".rela.dyn"), append(loaders, deferred...))
	return nil
}
