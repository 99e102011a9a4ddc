package standalone

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
)

// C10: every pause is above zero and below its bound, for any number of failures.
func TestPausesGrowWithFailuresAndStayWithinTheirBounds(t *testing.T) {
	for _, class := range []v1alpha1.Class{v1alpha1.ClassWorking, v1alpha1.ClassRetry, v1alpha1.ClassHeld, v1alpha1.ClassStalled} {
		for _, n := range []int{1, 2, 5, 20, 64, 1 << 30} {
			d := backoff(class, n, 30*time.Second)
			assert.Greater(t, d, 500*time.Millisecond, "%s %d", class, n)
			assert.LessOrEqual(t, d, maxRetry+maxRetry/10, "%s %d", class, n)
		}
	}
	assert.Less(t, backoff(v1alpha1.ClassRetry, 1, time.Hour), 2*time.Second, "the first retry is soon")
	assert.Greater(t, backoff(v1alpha1.ClassRetry, 30, time.Second), 4*time.Minute, "later ones are rare")
	assert.Less(t, backoff(v1alpha1.ClassWorking, 1, time.Hour), 3*time.Second, "a gateway that starts is looked at often")
	for _, d := range []time.Duration{0, 1, time.Hour, 1 << 61} {
		j := jitter(d)
		assert.GreaterOrEqual(t, j, d-d/10)
		assert.LessOrEqual(t, j, d+d/10+1)
	}
}

func TestHistoryKeepsTheNewestAndSaysARepeatedFailureOnce(t *testing.T) {
	var h []Past
	for i := range 50 {
		h = remember(h, &sync.Report{Target: plan.ID{byte(i)}, Reason: v1alpha1.ReasonSynced, Files: sync.Counts{Added: 1}})
	}
	assert.Len(t, h, maxHistory)
	assert.Equal(t, plan.ID{49}, h[0].Commit)
	failed := &sync.Report{Target: plan.ID{50}, Reason: v1alpha1.ReasonScanFailed, Message: "no"}
	h = remember(remember(h, failed), failed)
	assert.Equal(t, plan.ID{49}, h[1].Commit)
}

func TestAFileThatIsReplacedOrWrittenIsNoticed(t *testing.T) {
	defer goleak.VerifyNone(t)
	file := writeFile(t, "gs.yaml", "a")
	w := watch(file, slog.New(slog.DiscardHandler))
	defer w.Close()
	noticed := func(what string) {
		t.Helper()
		select {
		case <-w.Changed():
		case <-time.After(20 * time.Second):
			t.Fatal("not noticed: " + what)
		}
	}
	require.NoError(t, os.WriteFile(file, []byte("b"), 0o600))
	noticed("a write")
	require.NoError(t, os.WriteFile(file+"~", []byte("c"), 0o600))
	require.NoError(t, os.Rename(file+"~", file))
	noticed("a rename over it")
	require.NoError(t, os.Symlink("x", filepath.Join(filepath.Dir(file), "..data")))
	noticed("a secret volume's flip")
}

// There are file systems without events, and directories that cannot be watched: the loop reads the file anyway.
func TestWithoutEventsTheWatcherIsSilentAndNoError(t *testing.T) {
	w := watch(filepath.Join(t.TempDir(), "missing", "gs.yaml"), slog.New(slog.DiscardHandler))
	defer w.Close()
	select {
	case <-w.Changed():
		t.Fatal("nothing changed")
	default:
	}
}
