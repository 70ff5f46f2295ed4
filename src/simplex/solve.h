// The scalar equation behind entmax and normmax, in double precision.
#pragma once

#include <cstdint>

namespace tsallis {

// Solves sum_j exp(w) [1 - depth_j scale e^{-gamma w}]_+^{1/gamma} = 1 for w in [-ln n, 0] and
// writes ln of each term to log_terms (-inf off the support); gamma = 0 stands for the limit
// exp(w - depth_j slope), with slope = scale / gamma. depth: [n], >= 0, at least one 0. scale and
// gamma have the same sign; where they are negative (gamma > -1) every term is positive.
//
// Entmax is gamma = alpha - 1, scale = alpha - 1, w = ln p_max; normmax gamma = (alpha - 1)/alpha,
// scale = 1. Working with w = ln p_max keeps every digit where the threshold itself cannot: for
// alpha -> 1, [z - tau]^{1/(alpha-1)} is 1^inf, and for alpha = 64 and n = 1e6 the threshold's
// distance from the maximum is 1e-378.
//
// For gamma > 1 (alpha > 2) a term may rise from 0 to a good part of 1 within one unit in the last
// place of w. The terms are then interpolated between the two neighbouring values of w, so that
// they still sum to 1 and equal scores still share equally.
double SolveLogTerms(double gamma, double scale, const double* depth, std::int64_t n,
                     double* log_terms);

}  // namespace tsallis
