package status

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

// Events with the same reason and object are counted as one and keep the first note.
func TestOneEventNamesAllGatewaysThatFail(t *testing.T) {
	onTheFleet := func(s *scene) (notes []string) {
		for _, e := range s.events {
			if e.Pod == nil && e.Warning {
				notes = append(notes, e.Reason+" "+e.Note)
			}
		}
		return notes
	}
	t.Run("for the same", func(t *testing.T) {
		s := newScene(t, 3)
		s.write()
		s.fails(1, v1alpha1.ReasonTemplateFailed, "no such variable")
		s.fails(2, v1alpha1.ReasonTemplateFailed, "no such variable")
		s.write()
		assert.Equal(t, []string{"SyncFailed gw-1 (pod gw-1-0), gw-2 (pod gw-2-0): TemplateFailed: no such variable"}, onTheFleet(s))
		assert.Len(t, s.events, 3, "and each pod has its own")
	})
	t.Run("for something else", func(t *testing.T) {
		s := newScene(t, 3)
		s.write()
		s.fails(0, v1alpha1.ReasonTemplateFailed, "no such variable")
		s.fails(1, v1alpha1.ReasonMassDeletion, "90 files")
		s.fails(2, v1alpha1.ReasonNoSpace, "the disk is full")
		s.write()
		assert.Equal(t, []string{"SyncFailed gw-0 (pod gw-0-0): TemplateFailed: no such variable; gw-2 (pod gw-2-0): NoSpace: the disk is full", "SyncHeld gw-1 (pod gw-1-0): MassDeletion: 90 files"}, onTheFleet(s))
	})
	t.Run("many, each for something else", func(t *testing.T) {
		s := newScene(t, 40)
		s.write()
		for i := range s.Reports {
			s.fails(i, v1alpha1.ReasonTemplateFailed, fmt.Sprintf("%d%s", i, strings.Repeat("x", 100)))
		}
		s.write()
		notes := onTheFleet(s)
		require.Len(t, notes, 1)
		assert.LessOrEqual(t, len(notes[0]), maxMessage+len("SyncFailed "))
		assert.Contains(t, notes[0], "40 gateways: gw-0, gw-1, gw-10")
		assert.Contains(t, notes[0], "gw-9: TemplateFailed: 0xxx")
	})
}
