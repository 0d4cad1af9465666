// Package maxmin divides what is scarce: nobody gets more than they ask for, and those that get less than they
// ask for get equal shares by weight (weighted max–min fairness, by progressive filling).
//
// Pure: no clock, lock or goroutine.
package maxmin

import (
	"math"
	"slices"
)

// Claim is one claimant's demand. A weight of 0 counts as 1; a demand below 0 as 0.
type Claim struct {
	Demand float64
	Weight float64
}

func (c Claim) weight() float64 {
	if c.Weight <= 0 {
		return 1
	}
	return c.Weight
}

// Fill divides total among the claims. The shares sum to min(total, sum of the demands), up to rounding. The
// result does not depend on the order of the claims. O(n log n).
func Fill(total float64, claims []Claim) []float64 {
	shares := make([]float64, len(claims))
	order := make([]int, len(claims))
	weights := 0.0
	for i, c := range claims {
		order[i] = i
		weights += c.weight()
	}
	// Whoever has the least demand for his weight is full first.
	slices.SortFunc(order, func(a, b int) int {
		x, y := claims[a].Demand*claims[b].weight(), claims[b].Demand*claims[a].weight()
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	total = max(total, 0)
	for _, i := range order {
		c := claims[i]
		shares[i] = min(max(c.Demand, 0), total*c.weight()/weights)
		total -= shares[i]
		weights -= c.weight()
	}
	return shares
}

// Spread adds what is left of total after the shares to all of them by weight, demanded or not: somebody whose demand is
// about to come finds a share that is there.
func Spread(total float64, claims []Claim, shares []float64) {
	weights := 0.0
	for i, c := range claims {
		total -= shares[i]
		weights += c.weight()
	}
	if total <= 0 {
		return
	}
	for i, c := range claims {
		shares[i] += total * c.weight() / weights
	}
}

// Round makes whole numbers of shares that sum to total, each less than one away from its share, by largest remainder. Equal
// remainders are served from index first on, round and round, so that a caller who counts first up lets each have
// the odd one in turn. The shares must sum to total, up to rounding.
//
// Rounding down instead can stop a limit from growing for ever: a limit of 4 that four share as 1.33 each would be
// 1 each, used by three, and never full.
func Round(total int, shares []float64, first int) []int {
	n := len(shares)
	whole := make([]int, n)
	order := make([]int, n)
	left := total
	for i, s := range shares {
		whole[i] = int(math.Floor(s + 1e-9))
		left -= whole[i]
		order[i] = i
	}
	turn := func(i int) int { return ((i-first)%n + n) % n }
	slices.SortFunc(order, func(a, b int) int {
		ra, rb := shares[a]-float64(whole[a]), shares[b]-float64(whole[b])
		switch {
		case ra > rb+1e-9:
			return -1
		case rb > ra+1e-9:
			return 1
		}
		return turn(a) - turn(b)
	})
	for _, i := range order {
		if left <= 0 {
			break
		}
		whole[i]++
		left--
	}
	return whole
}
