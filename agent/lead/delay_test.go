package lead

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestCandidatesAreSpread(t *testing.T) {
	const moment, times = 100 * time.Millisecond, 300 // moment is the time until the others can see a new holder
	for _, n := range []int{1, 3, 20, 200, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, uint64(n)))
			together := 0
			for range times {
				turns := make([]time.Duration, n)
				for i := range turns {
					turns[i] = startDelay(random.Float64())
				}
				first := slices.Min(turns)
				assert.LessOrEqual(t, first, spread)
				for _, turn := range turns {
					if turn <= first+moment {
						together++
					}
				}
			}
			assert.Less(t, float64(together)/times, 3.0)
		})
	}
}

func TestCandidateDelayBounds(t *testing.T) {
	for _, x := range []float64{-1, 0, 1e-300, 0.5, 0.999, 0.9999999, 1, 2} {
		t.Run(fmt.Sprint(x), func(t *testing.T) {
			assert.GreaterOrEqual(t, startDelay(x), time.Duration(0))
			assert.LessOrEqual(t, startDelay(x), spread)
		})
	}
	assert.Equal(t, spread, startDelay(0))
	assert.Zero(t, startDelay(1))
}
