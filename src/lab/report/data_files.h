// The data of a study's figures: data/*.csv in a results folder.
//
//     entropy.csv    entropy and support of the attention, by method and length
//     heatmap.csv    sets: weights on the largest items
//     spread.csv     sets: spread of the scores and its bound, by step of training
//     positions.csv  sequences: the loss by position in the sample
//     groups.csv     sequences: the metric by kind of sample
//     measures.csv   sequences: what is measured beside the metric
//     flow.csv       sequences: gradient and keys with weight of each layer, by step of training
//     heads.csv      sequences: what each head does, of the first seed
//     attention.csv  sequences: attention maps of the heads that ChooseHeads() names, likewise
//     samples.csv    sequences: the tokens of the samples that are drawn token by token
//
// A file without content is not there.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lab/report/results.h"

namespace tsallis::lab {

// Every file, by its path in the results folder, with its text; empty where there is no content.
// Throws std::runtime_error for a heat map whose weights do not fit its sizes.
std::vector<std::pair<std::filesystem::path, std::string>> DataFiles(const StudyResults& results);

}  // namespace tsallis::lab
