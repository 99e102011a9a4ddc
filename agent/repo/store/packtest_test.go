package store

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
)

// rawPack builds packs by hand, including packs that git would never write.
type rawPack struct {
	buf   bytes.Buffer
	count uint32
}

// entry adds an entry that claims a type and a size, and returns its offset.
func (p *rawPack) entry(k kind, claimed int64, base []byte, content []byte) int64 {
	off := int64(packHeaderSize + p.buf.Len())
	p.buf.Write(EntryHeader(k, claimed))
	p.buf.Write(base)
	zw := zlib.NewWriter(&p.buf)
	_, _ = zw.Write(content)
	_ = zw.Close()
	p.count++
	return off
}

func (p *rawPack) object(k kind, content string) int64 {
	return p.entry(k, int64(len(content)), nil, []byte(content))
}

func (p *rawPack) refDelta(base plan.ID, delta []byte) int64 {
	return p.entry(kindRef, int64(len(delta)), base[:], delta)
}

func (p *rawPack) ofsDelta(base int64, delta []byte) int64 {
	return p.entry(kindOffset, int64(len(delta)), backward(int64(packHeaderSize+p.buf.Len())-base), delta)
}

// backward encodes the distance to a base.
func backward(n int64) []byte {
	b := []byte{byte(n & 0x7f)}
	for n >>= 7; n > 0; n >>= 7 {
		n--
		b = append([]byte{0x80 | byte(n&0x7f)}, b...)
	}
	return b
}

// bytes returns the pack with a valid checksum.
func (p *rawPack) bytes() []byte { return p.claiming(p.count) }

func (p *rawPack) claiming(objects uint32) []byte {
	b := append(PackHeader(int(objects)), p.buf.Bytes()...)
	sum := sha1.Sum(b)
	return append(b, sum[:]...)
}

// deltaOf returns a delta that claims the sizes of base and result, followed by ops.
func deltaOf(base, result int, ops ...byte) []byte {
	d := binary.AppendUvarint(nil, uint64(base))
	return append(binary.AppendUvarint(d, uint64(result)), ops...)
}

// appendText returns a delta that copies all of base and appends text.
func appendText(base, text string) []byte {
	ops := []byte{0x80 | 0x10 | 0x20, byte(len(base)), byte(len(base) >> 8), byte(len(text))}
	return deltaOf(len(base), len(base)+len(text), append(ops, text...)...)
}

// receive adds a pack to a store as a fetch does. A thin pack may use objects of the store as bases.
func receive(t testing.TB, s *testStore, pack []byte, thin bool) (*Received, error) {
	t.Helper()
	f, err := s.Begin(plan.ID{})
	require.NoError(t, err)
	defer f.Close()
	if thin {
		f.Base = plan.ID{1}
	}
	in, err := f.Receive(context.Background(), bytes.NewReader(pack))
	if err != nil {
		left, e := os.ReadDir(s.Dir() + "/" + packDir)
		require.NoError(t, e)
		for _, l := range left {
			require.NotContains(t, l.Name(), tempPrefix, "a failed pack leaves nothing behind")
		}
		return nil, err
	}
	require.NoError(t, f.Publish(in, false))
	return in, nil
}

func (p *rawPack) sum(b []byte) []byte {
	s := sha1.Sum(b)
	return s[:]
}
