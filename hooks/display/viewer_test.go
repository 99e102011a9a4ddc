package display

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/request"
)

func TestViewerOnTerminal(t *testing.T) {
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "line"}}
	for i := range 50 { // setup: the last two are behind
		g := v1alpha1.DiscoveredGateway{Name: fmt.Sprintf("area-%02d", i), SyncStatus: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced}
		if i > 47 {
			g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive, "ann edits "+strings.Repeat("view ", 40)
		}
		gs.Status.DiscoveredGateways = append(gs.Status.DiscoveredGateways, g)
	}
	draw := func(env map[string]string) string {
		var out strings.Builder
		l := &Viewer{w: &out, terminal: true, colors: allowsColors(func(name string) string { return env[name] })}
		l.Show(gs, request.Verdict{Phase: request.Held})
		l.Show(gs, request.Verdict{Phase: request.Held})
		return out.String()
	}
	plain := draw(map[string]string{"NO_COLOR": "1"})
	assert.Equal(t, 1, strings.Count(plain, "\x1b[H\x1b[J"), "an unchanged status must not be drawn again at once")
	lines := strings.Split(strings.TrimPrefix(plain, "\x1b[H\x1b[J"), "\n")
	assert.Len(t, lines, 24, "the output must fit on the screen")
	assert.NotContains(t, strings.TrimPrefix(plain, "\x1b[H\x1b[J"), "\x1b")
	for _, line := range lines { // sequence: one screen
		assert.LessOrEqual(t, len([]rune(line)), 80)
	}
	assert.Less(t, strings.Index(plain, "area-48"), strings.Index(plain, "area-00"), "gateways that are behind must come first")
	assert.Contains(t, plain, "more lines: stoker status line shows all")
	assert.NotContains(t, draw(map[string]string{"TERM": "dumb"}), "\x1b[33m")
	bright := draw(nil)
	assert.Contains(t, bright, "area-49   \x1b[33mHeld\x1b[0m     DesignerSessionActive")
	assert.Contains(t, bright, "area-00   \x1b[32mSynced\x1b[0m")
}
