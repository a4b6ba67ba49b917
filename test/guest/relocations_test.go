package guest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"testing"
)

// The dynamic loader of a program fills in none of Go's pointers, and a helper all of them (exports/deferred).
func TestLoaderLeavesGoAlone(t *testing.T) {
	library, err := elf.Open(library(t))
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()
	value := func(tag elf.DynTag) uint64 {
		values, err := library.DynValue(tag)
		if err != nil || len(values) != 1 {
			t.Fatalf("%v: %v, %v", tag, values, err)
		}
		return values[0]
	}
	contents := func(name string) (*elf.Section, []byte) {
		section := library.Section(name)
		if section == nil {
			t.Fatal("no section ", name)
		}
		data, err := section.Data()
		if err != nil {
			t.Fatal(err)
		}
		return section, data
	}
	goData, _ := contents("gp_go_data")
	all, table := contents(".rela.dyn")
	_, place := contents("gp_deferred")
	relocations := make([]elf.Rela64, len(table)/24)
	var deferred struct{ Address, Count uint64 }
	for _, read := range []struct {
		data []byte
		into any
	}{{table, relocations}, {place, &deferred}} {
		if err := binary.Read(bytes.NewReader(read.data), library.ByteOrder, read.into); err != nil {
			t.Fatal(err)
		}
	}
	if value(elf.DT_RELA) != all.Addr || deferred.Address != all.Addr+value(elf.DT_RELASZ) || deferred.Count != uint64(len(relocations))-value(elf.DT_RELASZ)/24 {
		t.Errorf("the loader has %d bytes at %#x, a helper %d relocations at %#x, of %d at %#x", value(elf.DT_RELASZ), value(elf.DT_RELA),
			deferred.Count, deferred.Address, len(relocations), all.Addr)
	}
	loaders := uint64(len(relocations)) - deferred.Count
	relative := relocations[0].Info // of the loader's the first ones are
	for i, r := range relocations {
		if ofGo := r.Off-goData.Addr < goData.Size && r.Info == relative; ofGo != (uint64(i) >= loaders) {
			t.Fatalf("relocation %d at %#x is on the wrong side of %d (gp_go_data: %#x, %d bytes)", i, r.Off, loaders, goData.Addr, goData.Size)
		}
	}
	if relatives := value(elf.DynTag(0x6ffffff9)); relatives == 0 || relatives > loaders || relocations[relatives-1].Info != relative {
		t.Errorf("DT_RELACOUNT is %d of %d relocations", relatives, loaders)
	}
}
