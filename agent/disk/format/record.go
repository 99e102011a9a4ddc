package format

import (
	"encoding/binary"
	"math"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// Record is one entry of the manifest: an owned file, or a directory that the agent created.
type Record struct {
	plan.Owned
	Dir bool
}

const (
	flagDir = 1 << iota
	flagExec
	flagHave         // Have differs from Want and follows it
	knownRecordFlags = flagDir | flagExec | flagHave
)

// appendRecord encodes r after a record of path prev: the length of the shared prefix, the rest of the path, and the fields.
func appendRecord(b []byte, prev string, r *Record) []byte {
	shared := 0
	for shared < len(prev) && shared < len(r.Path) && prev[shared] == r.Path[shared] {
		shared++
	}
	b = binary.AppendUvarint(b, uint64(shared))
	b = appendString(b, r.Path[shared:])
	if r.Dir {
		return append(b, flagDir)
	}
	var flags byte
	if r.Exec {
		flags |= flagExec
	}
	if r.Have != r.Want {
		flags |= flagHave
	}
	b = append(append(b, flags), r.Want[:]...)
	if r.Have != r.Want {
		b = append(b, r.Have[:]...)
	}
	b = binary.AppendUvarint(b, uint64(r.Size))
	b = binary.AppendVarint(b, r.Mtime)
	return binary.AppendUvarint(b, uint64(r.Origin))
}

// readRecord decodes what appendRecord wrote. path has the path of the previous record, and after the call the path of this one.
func readRecord(d *decoder, path *[]byte) Record {
	shared := d.length(len(*path))
	*path = append((*path)[:shared], d.bytes(safe.MaxPath)...)
	r := Record{}
	r.Path = string(*path)
	flags := d.byte()
	if flags&^knownRecordFlags != 0 {
		d.fail("record %q has unknown flags %#x", r.Path, flags)
	}
	if flags&flagDir != 0 {
		r.Dir = true
		return r
	}
	r.Exec = flags&flagExec != 0
	r.Want = d.id()
	r.Have = r.Want
	if flags&flagHave != 0 {
		r.Have = d.id()
	}
	r.Size = int64(d.uvarint(math.MaxInt64))
	r.Mtime = d.varint()
	r.Origin = uint16(d.uvarint(math.MaxUint16))
	return r
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
